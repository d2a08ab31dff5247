//! The GGUF reader on more than a hundred thousand damaged files: an error or a directory, never a panic, never a
//! large allocation.
//!
//! Invariants: seeded, so a failure repeats; every variant of `GgufError` occurs; the heap grows by less than 64 MiB
//! over what it was before each file. Does not know: which damage leads to which error (`src/gguf/tests/` does).

#![allow(clippy::unwrap_used, reason = "a test: a panic is its way to fail")]

#[path = "../src/gguf/tests/malformed.rs"]
#[allow(dead_code, reason = "shared with the unit tests, which use more of it")]
mod malformed;
#[path = "../src/gguf/tests/sample.rs"]
#[allow(dead_code, reason = "shared with the unit tests, which use more of it")]
mod sample;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use sample::Sample;
use tandem::gguf::{File, GgufError, reader};

use heap::grown_bytes;

const SEED: u64 = 20;
const MUTATIONS: usize = 110_000;
const SET_MUTATIONS: usize = 600;
const GROWTH_BYTES_MAX: usize = 64 << 20;

/// Counts the bytes that live on the heap.
mod heap {
    #![allow(unsafe_code, reason = "a global allocator that counts")]

    use std::alloc::{GlobalAlloc, Layout, System};
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    struct Counting;

    static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);
    static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);

    // SAFETY: every call goes to the system's allocator unchanged, whose promises hold for as long as the process
    // runs; the counters are beside it.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            PEAK_BYTES.fetch_max(LIVE_BYTES.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
            // SAFETY: the caller keeps the contract of `alloc`, which is the same one.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
            LIVE_BYTES.fetch_sub(layout.size(), Relaxed);
            // SAFETY: `place` came from `alloc` above, with this layout.
            unsafe { System.dealloc(place, layout) }
        }
    }

    #[global_allocator]
    static COUNTING: Counting = Counting;

    /// What `f` gives, and by how much the heap grew while it ran.
    pub fn grown_bytes<T>(f: impl FnOnce() -> T) -> (T, usize) {
        let before = LIVE_BYTES.load(Relaxed);
        PEAK_BYTES.store(before, Relaxed);
        let out = f();
        (out, PEAK_BYTES.load(Relaxed) - before)
    }
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

/// A file's directory without its data section, which the reader never reads.
#[derive(Clone)]
struct Head {
    bytes: Vec<u8>,
    /// Bytes of the whole file.
    len: u64,
    /// Places of strings' length fields.
    strings: Vec<usize>,
}

impl Head {
    fn new(bytes: Vec<u8>, len: u64) -> Head {
        let strings = strings(&bytes);
        Head { bytes, len, strings }
    }

    fn of_model(name: &str) -> Head {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models").join(name);
        let mut bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let len = bytes.len() as u64;
        bytes.truncate(reader::parse(&bytes).unwrap().data_start as usize);
        Head::new(bytes, len)
    }

    /// Reads it; behind the head stand zeros.
    fn read(&self) -> Result<reader::Directory, GgufError> {
        reader::read(self.bytes.chain(std::io::repeat(0)), self.len)
    }
}

/// Places where eight bytes say the length of the readable text behind them: keys, names, string values.
fn strings(bytes: &[u8]) -> Vec<usize> {
    let is_string = |at: usize| {
        let len = u64::from_le_bytes(*bytes[at..].first_chunk().unwrap()) as usize;
        let text = bytes.get(at + 8..(at + 8).saturating_add(len));
        (2..200).contains(&len) && text.is_some_and(|t| t.iter().all(u8::is_ascii_graphic))
    };
    (24..bytes.len().saturating_sub(8)).filter(|&at| is_string(at)).collect()
}

const EDGES: [u64; 20] = [
    0,
    1,
    2,
    4,
    5,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x1_0000,
    (1 << 20) + 1,
    (1 << 24) - 1,
    1 << 26,
    (1 << 31) - 1,
    0xffff_ffff,
    1 << 40,
    1 << 61,
    1 << 62,
    u64::MAX - 31,
    u64::MAX,
];

/// Writes as much as lies inside: places come from lengths that may be damaged already.
fn overwrite(bytes: &mut [u8], at: usize, with: &[u8]) {
    let place = bytes.iter_mut().skip(at);
    place.zip(with).for_each(|(to, from)| *to = *from);
}

/// One or several damages of one kind; `other` is a file to splice from.
fn mutate(head: &mut Head, other: &Head, random: &mut Random) {
    let len = head.bytes.len();
    let at = random.below(len);
    // The place of a string, and the one behind it, where a type, a count or a dimension stands.
    let string = if head.strings.is_empty() { 24 } else { random.of(&head.strings) };
    let behind = |bytes: &[u8]| {
        let text_len = u64::from_le_bytes(*bytes[string..].first_chunk().unwrap()) as usize;
        string + 8 + text_len.min(bytes.len())
    };
    match random.below(12) {
        0 => {
            for _ in 0..=random.below(4) {
                let at = random.below(len);
                head.bytes[at] ^= 1 << random.below(8);
            }
        }
        1 => {
            head.len = random.below(len + 1) as u64;
            head.bytes.truncate(head.len as usize);
        }
        2 => {
            let width = random.of(&[1, 2, 4, 8]);
            overwrite(&mut head.bytes, at, &random.of(&EDGES).to_le_bytes()[..width]);
        }
        3 => overwrite(&mut head.bytes, random.of(&[4, 8, 16]), &random.of(&EDGES).to_le_bytes()),
        4 => overwrite(&mut head.bytes, string, &random.of(&EDGES).to_le_bytes()),
        5 => {
            let place = behind(&head.bytes);
            overwrite(&mut head.bytes, place, &(random.below(45) as u32).to_le_bytes());
        }
        6 => {
            let place = behind(&head.bytes) + random.of(&[4, 8, 12, 16, 20, 24, 28, 36]);
            let (width, edge) = (random.of(&[4, 8]), random.of(&EDGES));
            overwrite(&mut head.bytes, place, &edge.to_le_bytes()[..width]);
        }
        7 => {
            let (from, n) = (random.below(other.bytes.len()), random.below(64));
            let piece = other.bytes[from..].iter().take(n).copied().collect::<Vec<_>>();
            overwrite(&mut head.bytes, at, &piece);
        }
        8 => {
            let n = random.below(32).min(len - at);
            head.bytes.drain(at..at + n);
        }
        9 => {
            let piece = (0..random.below(32)).map(|_| random.next() as u8).collect::<Vec<_>>();
            head.bytes.splice(at..at, piece);
        }
        10 => {
            // One name in the place of another of the same length.
            let name_len = head.bytes[string];
            let same = |&s: &usize| s != string && head.bytes[s] == name_len;
            if let Some(&twin) = head.strings.iter().find(|s| same(s)) {
                let text = head.bytes[twin + 8..].iter().take(name_len.into()).copied().collect::<Vec<_>>();
                overwrite(&mut head.bytes, string + 8, &text);
            }
        }
        _ => overwrite(&mut head.bytes, string + 8 + random.below(3), &[random.next() as u8 | 0x80]),
    }
}

/// How often each fault occurred; files that read well count as "read".
#[derive(Default)]
struct Tally {
    counts: BTreeMap<String, usize>,
    growth_bytes_max: usize,
}

impl Tally {
    fn check<T>(&mut self, what: &str, f: impl FnOnce() -> Result<T, GgufError>) {
        let (result, grown) = grown_bytes(f);
        self.growth_bytes_max = self.growth_bytes_max.max(grown);
        assert!(grown < GROWTH_BYTES_MAX, "{what}: the heap grew by {grown} B");
        let name = match &result {
            Ok(_) => "read".to_owned(),
            Err(e) => variant(e),
        };
        *self.counts.entry(name).or_default() += 1;
    }
}

/// The variant's name; where a path was added, that of the fault behind it.
fn variant(e: &GgufError) -> String {
    let inner = if let GgufError::In { error, .. } = e { error.as_ref() } else { e };
    format!("{inner:?}").split([' ', '(', '{']).next().unwrap().to_owned()
}

/// The variants as the source lists them.
fn variants() -> Vec<&'static str> {
    let source = include_str!("../src/gguf/error.rs");
    let body = source.split("pub enum GgufError {").nth(1).unwrap().split("\n}").next().unwrap();
    let name = |line: &'static str| {
        let rest = line.strip_prefix("    ")?;
        rest.starts_with(char::is_uppercase).then(|| rest.trim_end_matches(['{', ',', ' ']))
    };
    body.lines().filter_map(name).collect()
}

fn heads() -> Vec<Head> {
    let mut every_type = Sample::model();
    for (n, ty) in tandem::gguf::TensorType::ALL.iter().enumerate() {
        every_type.tensor(&format!("t.{n}"), &[256, 2], ty.id(), 2 * ty.row_bytes(256) as u64);
    }
    let samples =
        [Sample::model(), Sample::every_value_type(), every_type, Sample::split(0), Sample::split(1)];
    let mut heads: Vec<Head> = samples.iter().map(|s| Head::new(s.head(), s.bytes().len() as u64)).collect();
    heads.push(Head::of_model("rand-llama.gguf"));
    heads.extend((1..=4).map(|n| Head::of_model(&format!("split-rand-llama-{n:05}-of-00004.gguf"))));
    heads
}

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _left_behind = std::fs::remove_dir_all(&self.0);
    }
}

/// Damages of whole split sets on disk, most of them to the keys that hold a set together.
fn split_sets(tally: &mut Tally, random: &mut Random) {
    let folder = Folder(std::env::temp_dir().join(format!("tandem-gguf-mutations-{}", std::process::id())));
    std::fs::create_dir_all(&folder.0).unwrap();
    let path = |n: usize| folder.0.join(format!("m-{n:05}-of-00003.gguf"));
    for n in 0..SET_MUTATIONS {
        let mut set: Vec<Sample> = (0..3).map(Sample::split).collect();
        let (mut opened, mut left_out) = (path(1), None);
        let key = random.of(&["split.no", "split.count", "split.tensors.count"]);
        let (file, number) = (random.below(3), random.below(5) as u32);
        match random.below(7) {
            0 => opened = path(random.below(5)),
            1 => opened = folder.0.clone(),
            2 => left_out = Some(file),
            3 => set[file].remove(key),
            4 => set[1].infos[0].name = set[2].infos[0].name.clone(),
            5 => set[file].set("split.no", sample::U32, number.to_le_bytes()),
            _ => set[file].set(key, sample::U32, number.to_le_bytes()),
        }
        for (index, s) in set.iter().enumerate() {
            if left_out == Some(index) {
                let _absent = std::fs::remove_file(path(index + 1));
            } else {
                std::fs::write(path(index + 1), s.bytes()).unwrap();
            }
        }
        tally.check(&format!("seed {SEED}, set {n}"), || File::open(&opened));
    }
}

#[test]
fn damaged_files_are_refused_in_every_way_without_panic_or_large_allocation() {
    let mut tally = Tally::default();
    let heads = heads();
    for head in &heads {
        tally.check("an undamaged file", || head.read());
    }
    assert_eq!(tally.counts["read"], heads.len(), "{:?}", tally.counts);

    for case in malformed::cases() {
        tally.check(case.name, || reader::parse(&case.bytes));
    }
    let mut random = Random(SEED);
    for n in 0..MUTATIONS {
        let mut head = heads[random.below(heads.len())].clone();
        let other = &heads[random.below(heads.len())];
        for _ in 0..random.of(&[1, 1, 1, 2, 3]) {
            if head.bytes.len() > 40 {
                mutate(&mut head, other, &mut random);
                head.strings.retain(|s| s + 300 < head.bytes.len());
            }
        }
        tally.check(&format!("seed {SEED}, mutation {n}"), || head.read());
    }
    // A file that ends before its size.
    tally.check("a file that shrinks", || reader::read(heads[0].bytes[..].take(60), heads[0].len));
    split_sets(&mut tally, &mut random);

    for (name, count) in &tally.counts {
        println!("{count:>7} {name}");
    }
    println!("{:>7} B the heap grew at most", tally.growth_bytes_max);
    let missing: Vec<_> =
        variants().into_iter().filter(|v| *v != "In" && !tally.counts.contains_key(*v)).collect();
    assert!(variants().len() > 30, "the list of variants was found");
    assert!(missing.is_empty(), "variants that never occurred: {missing:?}");
    assert!(tally.counts.values().sum::<usize>() > 100_000);
}
