//! Tests of the container: right files, wrong files, keys of any width, split sets.

mod malformed;
mod sample;
mod split_sets;

use std::io::Read;
use std::path::{Path, PathBuf};

use super::reader::{parse, read, read_within};
use super::{File, GgufError, Limits, Metadata, TensorType, Value};
use sample::Sample;

/// A folder that goes away with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("tandem-gguf-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        std::fs::write(self.0.join(name), bytes).unwrap();
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _left_behind = std::fs::remove_dir_all(&self.0);
    }
}

fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models").join(name)
}

/// The variant's name, of the fault itself where a path was added.
fn variant(e: &GgufError) -> String {
    let inner = if let GgufError::In { error, .. } = e { error.as_ref() } else { e };
    format!("{inner:?}").split([' ', '(', '{']).next().unwrap().to_owned()
}

#[test]
fn every_malformed_file_is_refused_by_name() {
    for case in malformed::cases() {
        let e = parse(&case.bytes).err().unwrap_or_else(|| panic!("{}: accepted", case.name));
        assert_eq!(variant(&e), case.variant, "{}: {e}", case.name);
        assert!(e.to_string().contains(case.names), "{}: {e}", case.name);
    }
}

#[test]
fn every_message_ends_with_what_to_do() {
    for case in malformed::cases() {
        let text = parse(&case.bytes).err().unwrap().to_string();
        assert!(text.contains("; ") && !text.contains('\n'), "{}: {text}", case.name);
    }
}

#[test]
fn a_file_may_end_after_its_last_tensor_and_version_2_reads_the_same() {
    let mut s = Sample::model();
    let three = parse(&s.bytes()).unwrap();
    s.version = 2;
    let two = parse(&s.bytes()).unwrap();
    assert_eq!((three.version, two.version), (3, 2));
    assert_eq!(three.tensors, two.tensors);
    let t = &three.tensors[1];
    assert_eq!(
        (t.name.as_str(), t.ty, t.dims, t.n_dims),
        ("output_norm.weight", TensorType::F32, [32, 1, 1, 1], 1)
    );
    assert_eq!((t.offset, t.byte_len), (three.data_start + 128, 128));
    assert_eq!((t.cols(), t.rows(), t.matrices(), t.row_bytes()), (32, 1, 1, 128));
    assert_eq!(s.bytes().len() as u64, t.offset + t.byte_len);
}

#[test]
fn the_alignment_of_the_file_decides_where_tensors_lie() {
    for alignment in [1u32, 8, 64, 4096, 1 << 20] {
        let mut s = Sample::model();
        s.set("general.alignment", sample::U32, alignment.to_le_bytes());
        s.alignment = alignment.into();
        let directory = parse(&s.bytes()).unwrap();
        assert_eq!(directory.alignment, u64::from(alignment));
        assert!(directory.tensors.iter().all(|t| t.offset % u64::from(alignment) == 0));
    }
}

#[test]
fn a_file_without_tensors_may_end_before_its_data_section() {
    let mut s = Sample::model();
    s.infos.clear();
    assert_eq!(parse(&s.head()).unwrap().tensors, []);
}

#[test]
fn every_value_type_is_read() {
    let m = parse(&Sample::every_value_type().bytes()).unwrap().metadata;
    let checks = [
        ("x.scalar.0", Value::U8(1)),
        ("x.scalar.3", Value::I16(0x101)),
        ("x.scalar.6", Value::F32(f32::from_bits(0x0101_0101))),
        ("x.scalar.7", Value::Bool(true)),
        ("x.scalar.8", Value::String("text".into())),
        ("x.scalar.11", Value::I64(0x0101_0101_0101_0101)),
        ("x.array.1", Value::I8s(vec![1; 3])),
        ("x.array.4", Value::U32s(vec![0x0101_0101; 3])),
        ("x.array.7", Value::Bools(vec![true; 3])),
        ("x.array.8", Value::Strings(vec!["".into(), "one".into(), "\u{1f600}".into()])),
        ("x.array.12", Value::F64s(vec![f64::from_bits(0x0101_0101_0101_0101); 3])),
        ("x.array.empty", Value::Strings(vec![])),
    ];
    for (key, value) in checks {
        assert_eq!(m.get(key), Some(&value), "{key}");
    }
    assert_eq!((m.len(), m.iter().next().unwrap().0), (26, "general.architecture"));
}

#[test]
fn an_integer_key_may_have_any_width_that_its_value_fits() {
    let mut m = Metadata::default();
    let sevens = [
        Value::U8(7),
        Value::I8(7),
        Value::U16(7),
        Value::I16(7),
        Value::U32(7),
        Value::I32(7),
        Value::U64(7),
        Value::I64(7),
    ];
    for (i, v) in sevens.into_iter().enumerate() {
        assert!(m.insert(format!("k{i}"), v));
        assert_eq!(m.u32(&format!("k{i}")).unwrap(), Some(7));
        assert_eq!(m.i32(&format!("k{i}")).unwrap(), Some(7));
        assert_eq!(m.u64(&format!("k{i}")).unwrap(), Some(7));
        assert_eq!(m.u32s(&format!("k{i}")).unwrap(), Some(vec![7]));
    }
    m.insert("large".into(), Value::U64(1 << 32));
    m.insert("negative".into(), Value::I8(-1));
    m.insert("list".into(), Value::I64s(vec![1, -1]));
    assert_eq!(variant(&m.u32("large").unwrap_err()), "KeyRange");
    assert_eq!(variant(&m.u32("negative").unwrap_err()), "KeyRange");
    assert_eq!(m.i32("negative").unwrap(), Some(-1));
    assert_eq!(m.i32s("list").unwrap(), Some(vec![1, -1]));
    assert_eq!(variant(&m.u32s("list").unwrap_err()), "KeyRange");
    assert_eq!(variant(&m.u32("list").unwrap_err()), "KeyType");
    assert_eq!(m.u32("absent").unwrap(), None);
    assert!(!m.insert("list".into(), Value::U8(0)), "a key occurs once");
}

#[test]
fn a_key_of_another_type_is_an_error_that_names_both_types() {
    let mut m = Metadata::default();
    m.insert("f".into(), Value::F64(0.1));
    m.insert("fs".into(), Value::F64s(vec![0.1]));
    m.insert("b".into(), Value::Bools(vec![true]));
    assert_eq!(m.f32("f").unwrap(), Some(0.1));
    assert_eq!(m.f32s("fs").unwrap(), Some(vec![0.1]));
    assert_eq!(m.f32s("f").unwrap(), Some(vec![0.1]));
    assert_eq!(m.bools("b").unwrap(), Some(&[true][..]));
    let text = m.strings("b").unwrap_err().to_string();
    assert!(text.contains("key b: expected array of strings, found array of bool"), "{text}");
    for refused in [m.bool("f").err(), m.str("f").err(), m.f32("b").err(), m.u32("f").err()] {
        assert_eq!(variant(&refused.unwrap()), "KeyType");
    }
}

#[test]
fn bad_bytes_are_replaced_only_where_they_are_shown_to_people() {
    let mut s = Sample::model();
    s.set("general.name", sample::STRING, sample::text(b"a\xffb"));
    assert_eq!(parse(&s.bytes()).unwrap().metadata.str("general.name").unwrap(), Some("a\u{fffd}b"));
}

#[test]
fn each_limit_is_named_when_it_is_passed() {
    let bytes = Sample::every_value_type().bytes();
    let wide = Limits::default();
    let tight = [
        ("metadata count", Limits { keys: 3, ..wide }),
        ("tensor count", Limits { tensors: 1, ..wide }),
        ("key of metadata entry 0", Limits { key_bytes: 3, ..wide }),
        ("general.architecture", Limits { string_bytes: 3, ..wide }),
        ("x.array.0", Limits { array_elements: 2, ..wide }),
        ("metadata bytes", Limits { metadata_bytes: 100, ..wide }),
    ];
    for (names, limits) in tight {
        let e = read_within(&bytes[..], bytes.len() as u64, &limits).unwrap_err();
        assert_eq!(variant(&e), "Limit", "{e}");
        assert!(e.to_string().contains(names), "{e}");
    }
}

#[test]
fn a_file_that_shrinks_while_it_is_read_is_an_error() {
    let bytes = Sample::model().bytes();
    let e = read(bytes[..].take(100), bytes.len() as u64).unwrap_err();
    assert_eq!(variant(&e), "Read");
}

#[test]
fn the_directory_is_read_without_any_tensor_data() {
    let s = Sample::model();
    let directory = read(&s.head()[..], s.bytes().len() as u64).unwrap();
    assert_eq!(directory.tensors.len(), 2);
}

#[test]
fn an_opened_file_gives_keys_tensors_and_bytes() {
    let folder = Folder::new("opened");
    let s = Sample::model();
    let path = folder.write("m.gguf", &s.bytes());
    let file = File::open(&path).unwrap();
    assert_eq!(
        (file.architecture(), file.path(), file.file_bytes()),
        ("llama", path.as_path(), s.bytes().len() as u64)
    );
    assert_eq!(file.metadata().u32("llama.block_count").unwrap(), Some(2));
    assert_eq!(file.tensors().len(), 2);
    let t = file.tensor("output_norm.weight").unwrap();
    let expected: Vec<u8> = (128..256).map(|n: u32| (n % 251) as u8).collect();
    assert_eq!(file.data(t), expected);
    assert!(file.tensor("absent").is_none());
}

#[test]
fn released_bytes_read_the_same_again() {
    let file = File::open(&model("rand-wide.gguf")).unwrap();
    for t in file.tensors() {
        let before = file.data(t).to_vec();
        file.release(t, 0..before.len());
        file.release(t, 5..before.len() / 2);
        file.release(t, before.len()..usize::MAX);
        #[allow(clippy::reversed_empty_ranges, reason = "an empty range in any form is allowed")]
        file.release(t, 9..2);
        assert_eq!(file.data(t), before, "{}", t.name);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn released_pages_leave_the_process() {
    let folder = Folder::new("release");
    let mut s = Sample::model();
    s.tensor("large", &[1 << 20, 16], 24, 16 << 20);
    let file = File::open(&folder.write("m.gguf", &s.bytes())).unwrap();
    let resident = || {
        let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let at = text.find(folder.0.to_str().unwrap()).unwrap();
        let line = text[at..].lines().find(|l| l.starts_with("Rss:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    };
    let t = file.tensor("large").unwrap();
    let sum = |bytes: &[u8]| bytes.iter().map(|&b| u64::from(b)).sum::<u64>();
    let first = sum(file.data(t));
    let whole = resident();
    file.release(t, 0..t.byte_len as usize);
    let rest = resident();
    assert!(whole >= 16 << 20 && rest <= 1 << 20, "{whole} B resident, {rest} B after release");
    assert_eq!(sum(file.data(t)), first);
}

/// The variable by which a test tells the process that it starts what file to read.
#[cfg(unix)]
const SHORTENED: &str = "TANDEM_TEST_SHORTENED";

#[cfg(unix)]
#[test]
fn a_file_that_becomes_shorter_ends_the_process_with_one_line() {
    use std::os::unix::process::ExitStatusExt as _;
    let name = "gguf::tests::a_file_that_becomes_shorter_ends_the_process_with_one_line";
    if let Some(path) = std::env::var_os(SHORTENED) {
        super::lost_pages::watch();
        let file = File::open(path.as_ref()).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
        let t = file.tensor("large").unwrap();
        let sum: u64 = file.data(t).iter().map(|&b| u64::from(b)).sum();
        panic!("what is gone has the sum {sum}");
    }
    let folder = Folder::new("shortened");
    let mut s = Sample::model();
    s.tensor("large", &[1 << 10, 16], 24, 16 << 10);
    let path = folder.write("m.gguf", &s.bytes());
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    let out = again.args(["--exact", name, "--nocapture"]).env(SHORTENED, &path).output().unwrap();
    let errors = String::from_utf8(out.stderr).unwrap();
    assert_eq!((out.status.code(), out.status.signal()), (Some(1), None), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.starts_with("tandem: error: the model's file became shorter"), "{errors}");
}

#[cfg(unix)]
#[test]
fn a_read_behind_the_end_of_a_shortened_file_says_so() {
    let folder = Folder::new("read-shortened");
    let path = folder.write("m.gguf", &Sample::model().bytes());
    let file = File::open(&path).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
    let t = file.tensor("output_norm.weight").unwrap();
    let error = file.read(t, 0, &mut vec![0; t.byte_len as usize]).unwrap_err().to_string();
    assert_eq!(error, "the file became shorter while it was read");
}

#[test]
fn what_is_no_readable_file_is_refused_with_its_path() {
    let folder = Folder::new("unreadable");
    let empty = folder.write("empty.gguf", b"");
    for (path, expected) in [
        (folder.0.clone(), "NotAFile"),
        (folder.0.join("absent.gguf"), "Io"),
        (PathBuf::from("/dev/null"), "NotAFile"),
        (empty, "TooShort"),
    ] {
        let e = File::open(&path).unwrap_err();
        assert_eq!(variant(&e), expected, "{e}");
        assert!(e.to_string().starts_with(&path.display().to_string()), "{e}");
    }
}

#[test]
fn the_models_of_the_repository_open() {
    for (name, architecture, tensors) in [
        ("rand-llama.gguf", "llama", 39),
        ("rand-wide.gguf", "llama", 31),
        ("rand-lowbit.gguf", "qwen3moe", 32),
        ("rand-qwen3moe.gguf", "qwen3moe", 51),
        ("rand-qwen3moe-q8.gguf", "qwen3moe", 51),
        ("tiny-qwen3moe.gguf", "qwen3moe", 98),
    ] {
        let file = File::open(&model(name)).unwrap();
        assert_eq!(file.architecture(), architecture, "{name}");
        assert_eq!(file.tensors().len(), tensors, "{name}");
        assert!(file.metadata().strings("tokenizer.ggml.tokens").unwrap().is_some(), "{name}");
    }
}
