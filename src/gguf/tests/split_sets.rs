//! Split sets: one model over several files.

use super::sample::{self, Sample};
use super::{File, Folder, model, variant};

/// Writes a set of three, changed; opens the file with this number (from 1).
fn open(name: &str, number: u32, change: impl Fn(&mut [Sample; 3])) -> Result<File, super::GgufError> {
    let folder = Folder::new(name);
    let mut set = [0, 1, 2].map(Sample::split);
    change(&mut set);
    for (index, s) in set.iter().enumerate() {
        folder.write(&format!("m-{:05}-of-00003.gguf", index + 1), &s.bytes());
    }
    File::open(&folder.0.join(format!("m-{number:05}-of-00003.gguf")))
}

#[test]
fn a_set_opens_from_its_first_file_as_one_model() {
    let file = open("good", 1, |_| {}).unwrap();
    let places: Vec<_> = file.tensors().iter().map(|t| (t.name.as_str(), t.shard)).collect();
    assert_eq!(places, [("blk.1.weight", 1), ("blk.2.weight", 2)]);
    let expected: Vec<u8> = (0..256u32).map(|n| (n % 251) as u8).collect();
    assert!(file.tensors().iter().all(|t| file.data(t) == expected));
}

#[test]
fn a_split_model_has_the_tensors_of_the_whole_one() {
    let whole = File::open(&model("rand-llama.gguf")).unwrap();
    let split = File::open(&model("split-rand-llama-00001-of-00004.gguf")).unwrap();
    assert_eq!(split.tensors().len(), whole.tensors().len());
    for t in whole.tensors() {
        let other = split.tensor(&t.name).unwrap();
        assert_eq!((other.ty, other.dims), (t.ty, t.dims), "{}", t.name);
        assert_eq!(split.data(other), whole.data(t), "{}", t.name);
    }
    let bytes = (1..=4).map(|n| std::fs::metadata(model(&format!("split-rand-llama-{n:05}-of-00004.gguf"))));
    assert_eq!(split.file_bytes(), bytes.map(|m| m.unwrap().len()).sum::<u64>());
}

#[test]
fn a_later_file_is_refused_and_names_the_first() {
    let e = File::open(&model("split-rand-llama-00003-of-00004.gguf")).unwrap_err();
    assert_eq!(variant(&e), "NotFirst");
    assert!(e.to_string().contains("split-rand-llama-00001-of-00004.gguf"), "{e}");
}

#[test]
fn a_missing_file_of_the_set_is_named() {
    let folder = Folder::new("missing");
    folder.write("m-00001-of-00003.gguf", &Sample::split(0).bytes());
    folder.write("m-00003-of-00003.gguf", &Sample::split(2).bytes());
    let e = File::open(&folder.0.join("m-00001-of-00003.gguf")).unwrap_err();
    assert_eq!(variant(&e), "SplitMissing");
    assert!(e.to_string().contains("m-00002-of-00003.gguf"), "{e}");
}

#[test]
fn files_that_do_not_belong_together_are_refused() {
    let set_u16 = |key: &'static str, index: usize, v: u16| {
        move |set: &mut [Sample; 3]| set[index].set(key, sample::U16, v.to_le_bytes())
    };
    let total =
        |v: i32| move |set: &mut [Sample; 3]| set[0].set("split.tensors.count", sample::I32, v.to_le_bytes());
    let refuse = |name: &str, expected: &str, names: &str, change: &dyn Fn(&mut [Sample; 3])| {
        let e = open(&name.replace(' ', "-"), 1, change).unwrap_err();
        assert_eq!(variant(&e), expected, "{name}: {e}");
        assert!(e.to_string().contains(names), "{name}: {e}");
    };
    refuse("a wrong number", "SplitKey", "split.no is 2, 1 was expected", &set_u16("split.no", 1, 2));
    refuse("a wrong count", "SplitKey", "split.count is 4", &set_u16("split.count", 2, 4));
    refuse("a count unlike the name", "SplitName", "-of-00004.gguf", &set_u16("split.count", 0, 4));
    refuse("a number unlike the name", "SplitName", "-00002-of-00003.gguf", &set_u16("split.no", 0, 1));
    refuse("no number", "SplitKey", "split.no is missing", &|set| set[0].remove("split.no"));
    refuse("a later file without keys", "NoArchitecture", "m-00002", &|set| set[1].remove("split.no"));
    refuse("a later file without count", "SplitKey", "split.count is missing", &|set| {
        set[1].remove("split.count")
    });
    refuse("a wrong total", "SplitKey", "split.tensors.count is 3, 2 was expected", &total(3));
    refuse("a negative total", "KeyRange", "split.tensors.count", &total(-1));
    refuse("no total", "SplitKey", "split.tensors.count is missing", &|set| {
        set[0].remove("split.tensors.count")
    });
    refuse("a tensor twice", "DuplicateTensor", "blk.1.weight", &|set| {
        set[2].infos[0].name = b"blk.1.weight".into();
    });
    refuse("a damaged later file", "Version", "m-00003", &|set| set[2].version = 9);
}

#[test]
fn a_count_of_0_or_1_is_no_set_whatever_the_name() {
    for count in [0u16, 1] {
        let folder = Folder::new(&format!("single-{count}"));
        let mut s = Sample::model();
        s.set("split.no", sample::U16, 0u16.to_le_bytes());
        s.set("split.count", sample::U16, count.to_le_bytes());
        let file = File::open(&folder.write("model.gguf", &s.bytes())).unwrap();
        assert_eq!(file.tensors().len(), 2);
    }
}

#[test]
fn a_set_with_another_name_is_refused_with_the_name_it_needs() {
    let folder = Folder::new("renamed");
    let e = File::open(&folder.write("model.gguf", &Sample::split(0).bytes())).unwrap_err();
    assert_eq!(variant(&e), "SplitName");
    assert!(e.to_string().contains("PREFIX-00001-of-00003.gguf"), "{e}");
}
