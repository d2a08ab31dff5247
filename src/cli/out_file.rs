//! A file that appears whole under its name, or not at all.
//!
//! Invariants: only a new name or a regular file is written, never one of the inputs, a device or a folder, and a model
//! file only where that was asked for; until [`OutFile::finish`] the name keeps what it had; a run that ends early by itself
//! or at a signal leaves nothing beside it.
//! Does not know: what is written.

use std::fs;
use std::io::{self, BufWriter, ErrorKind, Read as _, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use tempfile::NamedTempFile;

use super::interrupt::Unfinished;
use crate::gguf::MAGIC;

/// Whether a model file that has the name may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Models {
    /// Refused: it may have taken hours to get.
    Kept,
    /// Replaced, as `--force` says.
    Replaced,
}

/// A file on its way.
#[derive(Debug)]
pub(super) struct OutFile {
    file: BufWriter<NamedTempFile>,
    target: PathBuf,
    part: Unfinished,
}

impl OutFile {
    /// Opens `path` for writing beside the `inputs` of the run, which must stay as they are.
    pub(super) fn create(path: &Path, inputs: &[PathBuf], models: Models) -> anyhow::Result<OutFile> {
        let name = path.display();
        if path.as_os_str().to_string_lossy().ends_with(std::path::is_separator) {
            bail!("{name}: is the name of a folder; name a file");
        }
        let (target, permissions) = match fs::symlink_metadata(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => (path.to_owned(), None),
            Err(e) => return Err(e).with_context(|| format!("{name}: cannot be written")),
            // Through a symbolic link: the link stays.
            Ok(_) => {
                let target = fs::canonicalize(path).with_context(|| format!("{name}: leads nowhere"))?;
                let metadata = fs::metadata(&target).with_context(|| format!("{name}: cannot be written"))?;
                if !metadata.is_file() {
                    bail!("{name}: is not a regular file; name a new file");
                }
                if inputs.iter().any(|input| fs::canonicalize(input).is_ok_and(|input| input == target)) {
                    bail!("{name}: is a file that this run reads; name another");
                }
                if models == Models::Kept
                    && is_model(&target).with_context(|| format!("{name}: cannot be read"))?
                {
                    bail!("{name}: is a model file (GGUF); name another file, or give --force to replace it");
                }
                // A file that a plain write could not change (read-only, a program that runs) stays as it is.
                fs::OpenOptions::new()
                    .append(true)
                    .open(&target)
                    .with_context(|| format!("{name}: cannot be written"))?;
                (target, Some(metadata.permissions()))
            }
        };
        let folder = match target.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let mut builder = tempfile::Builder::new();
        builder.prefix(".tandem-").suffix(".part");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            // What any program's new file gets: the mask of the user decides.
            builder.permissions(fs::Permissions::from_mode(0o666));
        }
        let file = builder.tempfile_in(folder).map_err(|e| told(&target, &e))?;
        let part = Unfinished::new(file.path());
        if let Some(permissions) = permissions.map(plain) {
            file.as_file()
                .set_permissions(permissions)
                .with_context(|| format!("{name}: cannot be written"))?;
        }
        Ok(OutFile { file: BufWriter::new(file), target, part })
    }

    /// Bytes that the file may still take on its disk; `None` where the system does not say.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        #[cfg(unix)]
        {
            let disk = rustix::fs::fstatvfs(self.file.get_ref().as_file()).ok()?;
            Some(disk.f_bavail.saturating_mul(disk.f_frsize))
        }
        #[cfg(not(unix))]
        None
    }

    /// Ends the file and gives it its name.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        let OutFile { file, target, part } = self;
        let file = file.into_inner().map_err(|e| told(&target, &e.into_error()))?;
        let placed = file.persist(&target).map_err(|e| told(&target, &e.error));
        drop(part);
        placed?;
        Ok(())
    }
}

/// An error of the unfinished file as one of the file that was asked for, with what to do.
fn told(target: &Path, error: &io::Error) -> io::Error {
    let text = error.to_string();
    // The name of the unfinished file follows; nobody knows it.
    let what = text.split(" at path ").next().unwrap_or_default();
    let advice = match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => "; make its folder first",
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => "; name a place where you may write",
        ErrorKind::FileTooLarge => "; raise the limit on sizes of files (ulimit -f)",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "; free some space there, or name another place",
        _ => "",
    };
    io::Error::new(error.kind(), format!("{}: cannot be written: {what}{advice}", target.display()))
}

/// Whether it begins as GGUF files do.
fn is_model(path: &Path) -> io::Result<bool> {
    let mut start = Vec::new();
    fs::File::open(path)?.take(MAGIC.len() as u64).read_to_end(&mut start)?;
    Ok(start == MAGIC)
}

/// Who may read, write and run; no file takes over another's rights to act as its owner.
#[cfg(unix)]
fn plain(permissions: fs::Permissions) -> fs::Permissions {
    use std::os::unix::fs::PermissionsExt as _;
    fs::Permissions::from_mode(permissions.mode() & 0o777)
}

#[cfg(not(unix))]
fn plain(permissions: fs::Permissions) -> fs::Permissions {
    permissions
}

impl Write for OutFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes).map_err(|error| told(&self.target, &error))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush().map_err(|error| told(&self.target, &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, inputs: &[PathBuf]) -> anyhow::Result<()> {
        let mut out = OutFile::create(path, inputs, Models::Kept)?;
        out.write_all(b"new")?;
        out.finish()
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        write(&path, &[]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        fs::write(&path, b"old").unwrap();
        let mut unfinished = OutFile::create(&path, &[], Models::Kept).unwrap();
        unfinished.write_all(b"half").unwrap();
        drop(unfinished);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(folder.path()), ["out"]);
    }

    #[test]
    fn inputs_folders_and_missing_folders_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let input = folder.path().join("model");
        fs::write(&input, b"weights").unwrap();
        let again = folder.path().join("sub").join("..").join("model");
        fs::create_dir(folder.path().join("sub")).unwrap();
        for (path, word) in [
            (again.as_path(), "reads"),
            (folder.path(), "not a regular file"),
            (&folder.path().join("missing").join("out"), "cannot be written"),
        ] {
            let error = format!("{:#}", write(path, std::slice::from_ref(&input)).unwrap_err());
            assert!(error.contains(word) && !error.contains('\n'), "{error}");
        }
        assert_eq!(fs::read(&input).unwrap(), b"weights");
        assert_eq!(names(folder.path()), ["model", "sub"]);
    }

    #[test]
    fn a_model_file_is_replaced_only_where_that_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        for (old, is_kept) in
            [(&b"GGUF\x03\x00\x00\x00"[..], true), (b"GGU", false), (b"", false), (b"GGML", false)]
        {
            fs::write(&path, old).unwrap();
            let made = write(&path, &[]);
            assert_eq!(made.is_err(), is_kept, "{old:?}");
            let error = made.err().map(|error| error.to_string()).unwrap_or_default();
            assert_eq!(error.contains("--force"), is_kept, "{error}");
            assert_eq!(fs::read(&path).unwrap(), if is_kept { old } else { b"new" });
        }
        fs::write(&path, b"GGUF").unwrap();
        OutFile::create(&path, &[], Models::Replaced).unwrap().finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
        let input = [path.clone()];
        assert!(OutFile::create(&path, &input, Models::Replaced).unwrap_err().to_string().contains("reads"));
        assert_eq!(names(folder.path()), ["model.gguf"]);
    }

    #[test]
    fn an_error_names_the_file_that_was_asked_for_and_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("missing").join("out");
        let error = format!("{:#}", write(&path, &[]).unwrap_err());
        assert!(error.starts_with(&format!("{}: cannot be written: ", path.display())), "{error}");
        assert!(error.ends_with("; make its folder first") && !error.contains(".tandem-"), "{error}");
        let full = io::Error::from(ErrorKind::StorageFull);
        let full = io::Error::new(full.kind(), format!("{full} at path \"/x/.tandem-1.part\""));
        let error = told(Path::new("/x/out"), &full);
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        let error = error.to_string();
        assert!(
            error.starts_with("/x/out: ") && !error.contains(".part") && error.contains("free"),
            "{error}"
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_a_link_and_a_socket_a_socket() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("real"), b"old").unwrap();
        std::os::unix::fs::symlink("real", at("link")).unwrap();
        std::os::unix::fs::symlink("nothing", at("dangling")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        write(&at("link"), &[]).unwrap();
        assert!(fs::symlink_metadata(at("link")).unwrap().is_symlink());
        assert_eq!(fs::read(at("real")).unwrap(), b"new");
        let error = |name: &str| format!("{:#}", write(&at(name), &[]).unwrap_err());
        assert!(error("dangling").contains("leads nowhere"));
        assert!(error("socket").contains("not a regular file"));
        let through = write(&at("link"), &[at("real")]).unwrap_err().to_string();
        assert!(through.contains("reads"), "{through}");
        assert_eq!(names(folder.path()), ["dangling", "link", "real", "socket"]);
    }
}
