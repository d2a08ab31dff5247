//! Pre-tokenizers: how a stretch of plain text is cut into the pieces inside which bytes merge.
//!
//! The families write their patterns with the look-ahead `\s+(?!\S)`: a run of whitespace in front of something else
//! leaves its last character to what follows. Here the patterns take the whole run and [`pieces`](Splitter::pieces)
//! gives that character back, so a plain automaton runs them: linear time and no limit on the length of a run, where
//! a backtracking engine gives up and would cut the text otherwise.
//! Invariant: the pieces are not empty and their concatenation is the text. Does not know: tokens.
//! Source: tokenizer specification, section 3.

use regex::Regex;

use super::error::TextError;

/// The pre-tokenizers of the supported families.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PreTokenizer {
    /// `default`, or no name.
    Default,
    /// `gpt-2`.
    Gpt2,
    /// `smollm`, `starcoder`.
    SmolLm,
    /// `llama-bpe`, `llama3`, `llama-v3`.
    Llama3,
    /// `qwen2`, `deepseek-r1-qwen`, `megrez`.
    Qwen2,
    /// `qwen35`.
    Qwen35,
}

/// Every name that files use.
const NAMES: &[(&str, PreTokenizer)] = &[
    ("default", PreTokenizer::Default),
    ("gpt-2", PreTokenizer::Gpt2),
    ("smollm", PreTokenizer::SmolLm),
    ("starcoder", PreTokenizer::SmolLm),
    ("llama-bpe", PreTokenizer::Llama3),
    ("llama3", PreTokenizer::Llama3),
    ("llama-v3", PreTokenizer::Llama3),
    ("qwen2", PreTokenizer::Qwen2),
    ("deepseek-r1-qwen", PreTokenizer::Qwen2),
    ("megrez", PreTokenizer::Qwen2),
    ("qwen35", PreTokenizer::Qwen35),
];

impl PreTokenizer {
    /// The pre-tokenizer with this name in `tokenizer.ggml.pre`; an empty name is a missing one.
    pub fn from_name(name: &str) -> Result<PreTokenizer, TextError> {
        if name.is_empty() {
            return Ok(PreTokenizer::Default);
        }
        NAMES.iter().find(|(n, _)| *n == name).map(|&(_, pre)| pre).ok_or_else(|| TextError::Pre {
            pre: name.to_owned(),
            supported: NAMES.iter().map(|(n, _)| *n).collect::<Vec<_>>().join(", "),
        })
    }

    /// True where a piece that is a token as a whole is taken without merging.
    pub fn ignores_merges(self) -> bool {
        self == PreTokenizer::Llama3
    }

    /// Whether bos goes in front of a prompt where the file does not say.
    pub fn adds_bos(self) -> bool {
        self == PreTokenizer::Llama3
    }

    fn rules(self) -> Vec<Rule> {
        // `\s+` stands last, where the families write `\s+(?!\S)` and, but for GPT-2, `|\s+`. GPT-2 leaves a lone
        // blank that nothing takes between two matches, which makes it a piece as well.
        const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+";
        const CONTRACTION: &str = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]";
        let newer = |letter: &str, digits: &str, other: &str| {
            let pattern = format!(
                r"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?{letter}+|{digits}| ?[^\s{other}]+[\r\n]*|\s*[\r\n]+|\s+"
            );
            Rule::new(&pattern, Whitespace::YieldsUnlessNewline)
        };
        let plain = |pattern| Rule::new(pattern, Whitespace::Stays);
        let gpt2 = || Rule::new(GPT2, Whitespace::Yields);
        match self {
            PreTokenizer::Default => {
                vec![plain(r"[\p{P}\$\+<=>\^~\|]+"), gpt2(), plain(r"\p{N}+"), plain("[0-9][0-9][0-9]")]
            }
            PreTokenizer::Gpt2 => vec![gpt2()],
            PreTokenizer::SmolLm => vec![plain(r"\p{N}"), gpt2()],
            PreTokenizer::Llama3 => vec![newer(r"\p{L}", r"\p{N}{1,3}", r"\p{L}\p{N}")],
            PreTokenizer::Qwen2 => vec![newer(r"\p{L}", r"\p{N}", r"\p{L}\p{N}")],
            PreTokenizer::Qwen35 => vec![newer(r"[\p{L}\p{M}]", r"\p{N}", r"\p{L}\p{M}\p{N}")],
        }
    }
}

/// Whether a match that is whitespace alone leaves its last character to what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whitespace {
    Stays,
    Yields,
    /// A run that ends in a newline was taken by `\s*[\r\n]+`, which keeps it whole.
    YieldsUnlessNewline,
}

#[derive(Debug)]
struct Rule {
    regex: Regex,
    whitespace: Whitespace,
}

impl Rule {
    fn new(pattern: &str, whitespace: Whitespace) -> Rule {
        Rule { regex: Regex::new(pattern).expect("invariant: the patterns above are valid"), whitespace }
    }

    /// The end of the first match at or behind `from`, and where it starts.
    fn find(&self, text: &str, from: usize) -> Option<(usize, usize)> {
        let found = self.regex.find_at(text, from)?;
        let end = found.end();
        let last = found.as_str().chars().next_back()?;
        let yields = match self.whitespace {
            Whitespace::Stays => false,
            Whitespace::Yields => true,
            Whitespace::YieldsUnlessNewline => !matches!(last, '\r' | '\n'),
        };
        let keeps = end - last.len_utf8();
        // In these patterns a match that ends in whitespace, newlines behind punctuation aside, is whitespace alone.
        let run = yields && last.is_whitespace() && end < text.len() && found.start() < keeps;
        Some((found.start(), if run { keeps } else { end }))
    }
}

/// A pre-tokenizer with its compiled patterns.
#[derive(Debug)]
pub struct Splitter {
    rules: Vec<Rule>,
}

impl Splitter {
    /// Compiles the patterns.
    pub fn new(pre: PreTokenizer) -> Splitter {
        Splitter { rules: pre.rules() }
    }

    /// Calls `each` with every piece of `text`, in order, until it fails.
    pub fn pieces<E>(&self, text: &str, each: &mut impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
        split(&self.rules, text, each)
    }
}

/// The first rule cuts `text`; every match and every stretch between goes to the rules behind it.
fn split<E>(rules: &[Rule], text: &str, each: &mut impl FnMut(&str) -> Result<(), E>) -> Result<(), E> {
    let Some((rule, rest)) = rules.split_first() else {
        return if text.is_empty() { Ok(()) } else { each(text) };
    };
    let mut done = 0;
    while let Some((start, end)) = rule.find(text, done) {
        if start > done {
            split(rest, &text[done..start], each)?;
        }
        split(rest, &text[start..end], each)?;
        done = end;
    }
    if done < text.len() { split(rest, &text[done..], each) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{Strategy, any, prop, prop_oneof};
    use proptest::strategy::Just;
    use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
    use tokenizers::tokenizer::normalizer::SplitDelimiterBehavior;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};

    const ALL: [PreTokenizer; 6] = [
        PreTokenizer::Default,
        PreTokenizer::Gpt2,
        PreTokenizer::SmolLm,
        PreTokenizer::Llama3,
        PreTokenizer::Qwen2,
        PreTokenizer::Qwen35,
    ];

    /// The patterns as the specification writes them.
    fn specified(pre: PreTokenizer) -> Vec<String> {
        let gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
        let c = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])";
        let tail = r"\s*[\r\n]+|\s+(?!\S)|\s+";
        let newer = |middle: &str| vec![format!("{c}|{middle}|{tail}")];
        match pre {
            PreTokenizer::Gpt2 => vec![gpt2.into()],
            PreTokenizer::SmolLm => vec![r"\p{N}".into(), gpt2.into()],
            PreTokenizer::Default => {
                vec![r"[\p{P}\$\+<=>\^~\|]+".into(), gpt2.into(), r"\p{N}+".into(), "[0-9][0-9][0-9]".into()]
            }
            PreTokenizer::Llama3 => newer(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"),
            PreTokenizer::Qwen2 => newer(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"),
            PreTokenizer::Qwen35 => {
                newer(r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*")
            }
        }
    }

    /// The library's splitter, with look-ahead, on the specified patterns.
    fn library(pre: PreTokenizer) -> Vec<Split> {
        let split = |p| Split::new(SplitPattern::Regex(p), SplitDelimiterBehavior::Isolated, false).unwrap();
        specified(pre).into_iter().map(split).collect()
    }

    fn library_pieces(splits: &[Split], text: &str) -> Vec<String> {
        let mut string = PreTokenizedString::from(text);
        splits.iter().for_each(|s| s.pre_tokenize(&mut string).unwrap());
        let pieces = string.get_splits(OffsetReferential::Original, OffsetType::Byte);
        pieces.into_iter().map(|(piece, ..)| piece.to_owned()).filter(|p| !p.is_empty()).collect()
    }

    fn pieces(splitter: &Splitter, text: &str) -> Vec<String> {
        let mut out = Vec::new();
        let each = &mut |piece: &str| {
            out.push(piece.to_owned());
            Ok::<(), ()>(())
        };
        splitter.pieces(text, each).unwrap();
        out
    }

    #[test]
    fn every_pretokenizer_cuts_as_the_specified_patterns_do() {
        let fragments = prop_oneof![
            Just(" "),
            Just("  "),
            Just("\n"),
            Just("\r\n"),
            Just("\t"),
            Just("\u{a0}"),
            Just("\u{3000}"),
            Just("\u{85}"),
            Just("\u{2028}"),
            Just("a"),
            Just("Wort"),
            Just("é"),
            Just("e\u{301}"),
            Just("\u{94d}"),
            Just("你好"),
            Just("1"),
            Just("2345"),
            Just("٣"),
            Just("½"),
            Just("Ⅷ"),
            Just("'s"),
            Just("'LL"),
            Just("'ſ"),
            Just("'"),
            Just("!"),
            Just("..."),
            Just("$+<=>^~|"),
            Just("€"),
            Just("😀"),
            Just("\u{200d}"),
            Just("\0"),
            Just("\u{7f}"),
            Just("_"),
        ];
        let text = prop_oneof![
            prop::collection::vec(fragments, 0..24).prop_map(|parts| parts.concat()),
            any::<String>(),
        ];
        let both = ALL.map(|pre| (pre, Splitter::new(pre), library(pre)));
        let config =
            proptest::test_runner::Config { cases: 2_000, failure_persistence: None, ..Default::default() };
        let mut runner = proptest::test_runner::TestRunner::new_with_rng(
            config,
            proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
        );
        let result = runner.run(&text, |text| {
            for (pre, splitter, splits) in &both {
                proptest::prop_assert_eq!(
                    pieces(splitter, &text),
                    library_pieces(splits, &text),
                    "{:?}",
                    pre
                );
            }
            Ok(())
        });
        assert!(result.is_ok(), "{}", result.unwrap_err());
    }

    #[test]
    fn a_run_of_whitespace_of_any_length_gives_up_its_last_character() {
        let run = " ".repeat(1_500_000);
        for pre in [PreTokenizer::Gpt2, PreTokenizer::Llama3, PreTokenizer::Qwen2] {
            let pieces = pieces(&Splitter::new(pre), &format!("{run}a"));
            assert_eq!(pieces, [&run[1..], " a"], "{pre:?}");
        }
    }

    #[test]
    fn every_name_is_known_and_another_is_refused() {
        assert_eq!(PreTokenizer::from_name("").unwrap(), PreTokenizer::Default);
        assert!(NAMES.iter().all(|&(name, pre)| PreTokenizer::from_name(name).unwrap() == pre));
        assert!(PreTokenizer::from_name("qwen-2").is_err());
    }
}
