//! An opened model: one file or a split set, mapped, with its directory.
//!
//! Invariants: a `File` that exists passed every check of the format: each tensor lies inside its file and names are
//! unique over the set; all directories are checked before the first file is mapped.
//! Does not know: model families, block layouts. Source: gguf sections 3 and 4.

use std::collections::HashMap;
use std::fs;
use std::io::{self, BufReader, ErrorKind};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::error::GgufError;
use super::map::Map;
use super::metadata::Metadata;
use super::reader::{self, Directory, TensorInfo};

/// Bytes read ahead while the directory is read.
const READ_AHEAD_BYTES: usize = 256 * 1024;

/// One model, in one or several mapped files.
#[derive(Debug)]
pub struct File {
    /// Of all files, in the order of the set.
    paths: Vec<PathBuf>,
    architecture: String,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
    maps: Vec<Map>,
}

impl File {
    /// Opens a model file, or a split set from its first file.
    pub fn open(path: &Path) -> Result<File, GgufError> {
        let first = Opened::open(path)?;
        let metadata = &first.directory.metadata;
        let count = metadata.u32("split.count").map_err(|e| e.in_file(path))?.unwrap_or(0);
        let (mut parts, mut paths) = (vec![first], vec![path.to_path_buf()]);
        if count > 1 {
            let set = SplitSet::of(path, count, &parts[0].directory).map_err(|e| e.in_file(path))?;
            set.check(0, &parts[0].directory).map_err(|e| e.in_file(path))?;
            for number in 1..count {
                let part_path = set.path(number);
                parts.push(set.open(number, &part_path).map_err(|e| e.in_file(&part_path))?);
                paths.push(part_path);
            }
            set.check_total(&parts).map_err(|e| e.in_file(path))?;
        }
        File::assemble(paths, parts).map_err(|e| e.in_file(path))
    }

    /// The prefix of the architecture's keys.
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    /// The keys of the (first) file.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors of all files, in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&i| &self.tensors[i])
    }

    /// The bytes of one of this file's tensors.
    pub fn data(&self, t: &TensorInfo) -> &[u8] {
        &self.maps[t.shard].bytes()[span(t)]
    }

    /// Reads the bytes of a tensor from `at` on.
    pub fn read(&self, t: &TensorInfo, at: usize, to: &mut [u8]) -> io::Result<()> {
        let place = span(t);
        assert!(at <= place.len() && to.len() <= place.len() - at, "{}: {} B at {at}", t.name, to.len());
        self.maps[t.shard].read(place.start + at, to)
    }

    /// Gives the memory of a part of a tensor back to the system: whole pages that lie inside `bytes` (counted from the
    /// tensor's start). They can be read again.
    pub fn release(&self, t: &TensorInfo, bytes: Range<usize>) {
        let whole = span(t);
        let start = whole.start.saturating_add(bytes.start).min(whole.end);
        let end = whole.start.saturating_add(bytes.end).min(whole.end);
        self.maps[t.shard].release(start..end);
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.paths[0]
    }

    /// The paths of all files of the set, in order.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Bytes of all files.
    pub fn file_bytes(&self) -> u64 {
        self.maps.iter().map(|m| m.bytes().len() as u64).sum()
    }

    fn assemble(paths: Vec<PathBuf>, mut parts: Vec<Opened>) -> Result<File, GgufError> {
        let metadata = std::mem::take(&mut parts[0].directory.metadata);
        let architecture = match metadata.str("general.architecture")? {
            Some(name) => name.to_owned(),
            None => return Err(GgufError::NoArchitecture),
        };
        let mut tensors = Vec::with_capacity(parts.iter().map(|p| p.directory.tensors.len()).sum());
        let mut index = HashMap::with_capacity(tensors.capacity());
        for (shard, part) in parts.iter_mut().enumerate() {
            for tensor in part.directory.tensors.drain(..) {
                if index.insert(tensor.name.clone(), tensors.len()).is_some() {
                    return Err(GgufError::DuplicateTensor { tensor: tensor.name });
                }
                tensors.push(TensorInfo { shard, ..tensor });
            }
        }
        let map = |p: &Opened| {
            Map::open(&p.file, p.len_bytes).map_err(|error| GgufError::Io { action: "map the file", error })
        };
        let maps = parts.iter().map(map).collect::<Result<Vec<_>, _>>()?;
        Ok(File { paths, architecture, metadata, tensors, index, maps })
    }
}

/// The tensor's place in its file. The reader checked that it lies inside, so it fits the address space.
fn span(t: &TensorInfo) -> Range<usize> {
    t.offset as usize..(t.offset + t.byte_len) as usize
}

/// A file whose directory passed all checks; not mapped yet.
struct Opened {
    file: fs::File,
    len_bytes: u64,
    directory: Directory,
}

impl Opened {
    fn open(path: &Path) -> Result<Opened, GgufError> {
        Opened::read(path).map_err(|e| e.in_file(path))
    }

    fn read(path: &Path) -> Result<Opened, GgufError> {
        let io = |action| move |error| GgufError::Io { action, error };
        // Asked before opening: opening a pipe would wait for its writer.
        let kind = fs::metadata(path).map_err(io("open the file"))?;
        if !kind.is_file() {
            let found = if kind.is_dir() { "it is a folder" } else { "it is a pipe or a device" };
            return Err(GgufError::NotAFile { found });
        }
        let file = fs::File::open(path).map_err(io("open the file"))?;
        let len_bytes = file.metadata().map_err(io("read the file's size"))?.len();
        let directory = reader::read(BufReader::with_capacity(READ_AHEAD_BYTES, &file), len_bytes)?;
        Ok(Opened { file, len_bytes, directory })
    }
}

/// The names and numbers of a split set.
struct SplitSet {
    folder: PathBuf,
    prefix: String,
    count: u32,
    tensors: Option<u64>,
}

impl SplitSet {
    /// From the first file; refuses a later one.
    fn of(path: &Path, count: u32, directory: &Directory) -> Result<SplitSet, GgufError> {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let number = directory.metadata.u32("split.no")?.unwrap_or(0).saturating_add(1);
        let prefix = name.strip_suffix(&format!("-{number:05}-of-{count:05}.gguf"));
        let Some(prefix) = prefix else {
            return Err(GgufError::SplitName { expected: format!("PREFIX-{number:05}-of-{count:05}.gguf") });
        };
        let tensors = directory.metadata.u64("split.tensors.count")?;
        let folder = path.parent().map(Path::to_path_buf).unwrap_or_default();
        let set = SplitSet { folder, prefix: prefix.to_owned(), count, tensors };
        if number > 1 {
            return Err(GgufError::NotFirst { number, count, first: set.path(0).display().to_string() });
        }
        Ok(set)
    }

    fn path(&self, index: u32) -> PathBuf {
        self.folder.join(format!("{}-{:05}-of-{:05}.gguf", self.prefix, index + 1, self.count))
    }

    fn open(&self, index: u32, path: &Path) -> Result<Opened, GgufError> {
        let part = Opened::open(path).map_err(|e| self.missing(index, e))?;
        self.check(index, &part.directory)?;
        Ok(part)
    }

    /// The error, or the plainer one if the file does not exist.
    fn missing(&self, index: u32, e: GgufError) -> GgufError {
        match &e {
            GgufError::In { error, .. } => match error.as_ref() {
                GgufError::Io { error, .. } if error.kind() == ErrorKind::NotFound => {
                    GgufError::SplitMissing { number: index + 1, count: self.count }
                }
                _ => e,
            },
            _ => e,
        }
    }

    fn check(&self, index: u32, directory: &Directory) -> Result<(), GgufError> {
        for (key, expected) in [("split.no", index), ("split.count", self.count)] {
            let found = directory.metadata.u32(key)?;
            if found != Some(expected) {
                let found = found.map_or("missing".to_owned(), |f| f.to_string());
                return Err(GgufError::SplitKey { key, expected: expected.into(), found });
            }
        }
        Ok(())
    }

    fn check_total(&self, parts: &[Opened]) -> Result<(), GgufError> {
        let held = parts.iter().map(|p| p.directory.tensors.len() as u64).sum();
        if self.tensors != Some(held) {
            let found = self.tensors.map_or("missing".to_owned(), |f| f.to_string());
            return Err(GgufError::SplitKey { key: "split.tensors.count", expected: held, found });
        }
        Ok(())
    }
}
