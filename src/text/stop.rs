//! Stop strings: they end an answer and are not part of it, even where they span tokens.
//!
//! Text that may be the start of a stop string is held back until it cannot be one any more. The result does not
//! depend on how the text is cut into pushes: the stop string that is complete first ends the answer, of two that are
//! complete at the same character the one that began earlier.
//! Does not know: tokens. Source: tokenizer specification, section 6.

/// What a push makes certain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopStep {
    /// Text that belongs to the answer.
    pub emit: String,
    /// The position in the list of the stop string that ended the answer.
    pub stopped: Option<usize>,
}

/// The stop strings of one answer, and the text that is held back.
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    held: String,
    stopped: Option<usize>,
}

impl StopStrings {
    /// An empty string stops nothing.
    pub fn new(stops: Vec<String>) -> StopStrings {
        StopStrings { stops, ..StopStrings::default() }
    }

    /// Takes the next text of the answer. Behind a stop everything is swallowed.
    pub fn push(&mut self, text: &str) -> StopStep {
        let mut step = StopStep { emit: String::new(), stopped: self.stopped };
        for c in text.chars() {
            if self.stopped.is_some() {
                break;
            }
            self.held.push(c);
            step.stopped = self.complete();
            if let Some(stop) = step.stopped {
                self.stopped = step.stopped;
                step.emit.push_str(&self.held[..self.held.len() - self.stops[stop].len()]);
                self.held.clear();
                break;
            }
            let certain = self.held.len() - self.possible_start_bytes();
            step.emit.extend(self.held.drain(..certain));
        }
        step
    }

    /// The end of the answer: what was held back belongs to it.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// The longest stop string that the held text ends with.
    fn complete(&self) -> Option<usize> {
        let ends = |&i: &usize| !self.stops[i].is_empty() && self.held.ends_with(&self.stops[i]);
        (0..self.stops.len()).rev().filter(ends).max_by_key(|&i| self.stops[i].len())
    }

    /// Bytes of the longest suffix of the held text that some stop string starts with.
    fn possible_start_bytes(&self) -> usize {
        let starts = |at: &usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[*at..]));
        let from = self.held.char_indices().map(|(at, _)| at).find(starts);
        from.map_or(0, |at| self.held.len() - at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pushes the parts; the answer's text, and which stop ended it.
    fn run(stops: &[&str], parts: &[&str]) -> (Vec<String>, String, Option<usize>) {
        let mut strings = StopStrings::new(stops.iter().map(|s| s.to_string()).collect());
        let mut stopped = None;
        let emitted = parts
            .iter()
            .map(|part| {
                let step = strings.push(part);
                stopped = step.stopped;
                step.emit
            })
            .collect();
        (emitted, strings.finish(), stopped)
    }

    #[test]
    fn a_stop_string_that_spans_pushes_ends_the_answer_in_front_of_it() {
        let (emitted, rest, stopped) = run(&["</end>"], &["text <", "/en", "d> more", "and more"]);
        assert_eq!((emitted.concat().as_str(), rest.as_str(), stopped), ("text ", "", Some(0)));
        assert_eq!(emitted, ["text ", "", "", ""]);
    }

    #[test]
    fn text_that_only_looked_like_a_stop_string_comes_back() {
        let (emitted, rest, stopped) = run(&["aab"], &["a", "a", "a", "c", "aa"]);
        assert_eq!(emitted, ["", "", "a", "aac", ""]);
        assert_eq!((rest.as_str(), stopped), ("aa", None));
    }

    #[test]
    fn the_cut_into_pushes_changes_nothing() {
        let stops = ["abcd", "bc", "", "éé", "cé"];
        for text in ["xabcd", "abd", "aébéé.", "ccéé", "aaab", "", "é é éé é"] {
            let (whole, rest, stopped) = run(&stops, &[text]);
            let single: Vec<String> = text.chars().map(String::from).collect();
            let single: Vec<&str> = single.iter().map(String::as_str).collect();
            let (cut, cut_rest, cut_stopped) = run(&stops, &single);
            assert_eq!(
                (whole.concat() + &rest, stopped),
                (cut.concat() + &cut_rest, cut_stopped),
                "{text:?}"
            );
        }
    }

    #[test]
    fn the_stop_that_is_complete_first_wins_then_the_one_that_began_earlier() {
        assert_eq!(run(&["abcd", "bc"], &["xabcd"]), (vec!["xa".into()], String::new(), Some(1)));
        assert_eq!(run(&["bc", "abc"], &["xabc"]), (vec!["x".into()], String::new(), Some(1)));
        assert_eq!(run(&["", "q"], &["abc"]), (vec!["abc".into()], String::new(), None));
    }
}
