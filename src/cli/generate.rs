//! `tandem generate`: text from a prompt, streamed as it is made.
//!
//! Invariant: the answer goes to the output stream, everything else to the error stream.

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use serde_json::json;

use super::args::GenerateArgs;
use super::load::Prepared;
use super::streams::{output, tell};
use super::{input, interrupt, progress};
use crate::engine::error::EngineError;
use crate::engine::open::Opened;
use crate::engine::request::{Counters, Finish, Request, RequestEvent};
use crate::engine::sample::SamplingOptions;
use crate::split::budget::{format_bytes, format_count};
use crate::text::{
    AddSpecial, ChatInput, ChatTemplate, Detokenizer, ParseSpecial, SpecialText, StopStrings, Tokenizer,
    Vocab, replace_bad_utf8,
};

/// The name of the model that ships in the repository, and a question that it answers well.
const SHIPPED: &str = "tiny-qwen3moe";
const QUESTION: &str = "What does `Vec::push` do?";

/// What to do without a prompt.
const GIVE_PROMPT: &str = "give --prompt, --prompt-file or text on standard input";

/// The bar over the prompt's tokens.
const READING: &str = "prompt {bar:40} {human_pos} of {human_len} {eta}";

/// Runs the command.
pub(super) fn run(args: &GenerateArgs) -> anyhow::Result<()> {
    let prepared = Prepared::new(&args.split, args.sequences.sequences)?;
    let vocab = Vocab::from_metadata(prepared.model.file.metadata())?;
    let name = prepared.model.file.metadata().str("general.name").ok().flatten();
    let prompt = prompt_ids(args, &vocab, name == Some(SHIPPED), prepared.options.context)?;
    if prompt.tokens.is_empty() {
        bail!("the prompt is empty; {GIVE_PROMPT}");
    }
    let request = Request {
        prompt: prompt.tokens.clone(),
        tokens_max: args.max_tokens,
        sampling: sampling(args),
        end_tokens: if args.ignore_eos {
            Vec::new()
        } else {
            vocab.end_of_generation.iter().copied().collect()
        },
        ..Request::default()
    };
    // Before a large model is loaded for nothing.
    let of_prompt = |error: &EngineError| {
        matches!(error, EngineError::TokenOutOfRange { .. } | EngineError::PromptTooLong { .. })
    };
    match request.check(&prepared.options) {
        Err(error) if args.prompt_tokens.is_some() && of_prompt(&error) => {
            return Err(error).context("--prompt-tokens");
        }
        checked => checked?,
    }
    warn_of_draws(args);
    let plan = prepared.plan()?;
    if !args.json {
        tell(format_args!("{}\n", plan.to_string().trim_end()));
    }
    let opened = prepared.open(plan)?;
    let mut answer = Answer::new(&vocab, args, &prompt)?;
    let mut handle = opened.engine.submit(request)?;
    let _watched = interrupt::cancels(handle.canceller());
    let reading = progress::bar(READING, prompt.tokens.len() as u64);
    while let Some(event) = handle.next_event() {
        if !matches!(event, RequestEvent::Prompt { .. }) && !reading.is_finished() {
            reading.finish_and_clear();
            answer.begin()?;
        }
        match event {
            RequestEvent::Prompt { read, .. } => reading.set_position(read as u64),
            RequestEvent::Token { id, .. } => {
                if answer.token(id)? {
                    handle.cancel();
                }
            }
            RequestEvent::Finished { finish: Finish::Failed(error), .. } => {
                if !args.json {
                    // The error begins a line of its own.
                    writeln!(output())?;
                }
                return Err(error.into());
            }
            RequestEvent::Finished { finish, counters } => answer.end(&finish, &counters, &opened)?,
            RequestEvent::Logits { .. } => {}
        }
    }
    prepared.end(opened.engine)
}

/// Says which flags of draws do nothing where nothing is drawn.
fn warn_of_draws(args: &GenerateArgs) {
    let given = [
        ("--top-k", args.top_k != 0),
        ("--top-p", args.top_p != 1.0),
        ("--min-p", args.min_p != 0.0),
        ("--seed", args.seed != 0),
    ];
    let given: Vec<&str> =
        given.into_iter().filter_map(|(flag, is_given)| is_given.then_some(flag)).collect();
    if args.temperature == 0.0 && !given.is_empty() {
        tracing::warn!(
            "at --temperature 0 the best token is taken each time, without regard to {}; give --temperature 0.7 to draw",
            given.join(", ")
        );
    }
}

fn sampling(args: &GenerateArgs) -> SamplingOptions {
    SamplingOptions {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        repeat_penalty: args.repeat_penalty,
        presence_penalty: args.presence_penalty,
        penalty_window: args.penalty_window,
        seed: args.seed,
        ..SamplingOptions::default()
    }
}

/// What the model reads, and what a person sees of it.
struct Prompt {
    tokens: Vec<u32>,
    /// Shown in front of a continued text.
    shown: Option<String>,
}

fn prompt_ids(
    args: &GenerateArgs,
    vocab: &Vocab,
    is_shipped: bool,
    context: usize,
) -> anyhow::Result<Prompt> {
    if let Some(tokens) = &args.prompt_tokens {
        return Ok(Prompt { tokens: tokens.clone(), shown: None });
    }
    let given = prompt_text(args)?;
    if given.is_none() && !is_shipped {
        bail!("no prompt: the built-in one is for the model of the repository; {GIVE_PROMPT}");
    }
    let is_chat = args.chat || given.is_none();
    let shown = given.is_none().then(|| format!("{QUESTION}\n\n"));
    let text = given.unwrap_or_else(|| QUESTION.to_owned());
    let tokenizer = Tokenizer::new(vocab)?;
    let encode = |text: &str| {
        tokenizer.encode_within(text, ParseSpecial::AsTokens, AddSpecial::UnlessWritten, context)
    };
    if !is_chat {
        let tokens = encode(&text)?;
        return Ok(Prompt { tokens, shown: Some(text) });
    }
    let source = vocab.chat_template.as_deref().context(
        "--chat: the model file has no chat template (tokenizer.chat_template); leave --chat out to continue the \
         prompt as text",
    )?;
    // A text that cannot fit is refused before a template works on it, which may trim it but leaves nothing out.
    for message in args.system.iter().chain([&text]) {
        encode(message.trim())?;
    }
    let mut messages = Vec::new();
    if let Some(system) = &args.system {
        messages.push(json!({"role": "system", "content": system}));
    }
    messages.push(json!({"role": "user", "content": text}));
    let input = ChatInput {
        messages,
        add_generation_prompt: true,
        bos_token: vocab.bos_text().to_owned(),
        eos_token: vocab.eos_text().to_owned(),
        now_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64),
        ..ChatInput::default()
    };
    let rendered = ChatTemplate::new(source)?.render(&input)?;
    let tokens = encode(&rendered)?;
    Ok(Prompt { tokens, shown })
}

/// The user's prompt; `None` where a built-in one serves.
fn prompt_text(args: &GenerateArgs) -> anyhow::Result<Option<String>> {
    if let Some(text) = &args.prompt {
        return Ok(Some(text.clone()));
    }
    let read = |bytes: Vec<u8>, what: &str| {
        let text = replace_bad_utf8(&bytes).into_owned();
        if text.as_bytes() != bytes.as_slice() {
            tracing::warn!("{what} is not valid UTF-8; bad bytes were replaced by U+FFFD");
        }
        text
    };
    match args.prompt_file.as_deref() {
        Some(path) if path != Path::new("-") => {
            let bytes = input::read_file("--prompt-file", path)?;
            return Ok(Some(read(bytes, "the prompt file")));
        }
        None if std::io::stdin().is_terminal() => return Ok(None),
        _ => {}
    }
    let bytes = input::read(std::io::stdin().lock(), "standard input")?;
    if bytes.is_empty() && args.prompt_file.is_none() {
        // Nobody types and nothing comes, as under a job runner: no prompt at all.
        return Ok(None);
    }
    Ok(Some(read(bytes, "standard input")))
}

/// The answer as it grows.
struct Answer<'v> {
    detokenizer: Detokenizer<'v>,
    stops: StopStrings,
    json: bool,
    timing: bool,
    text: String,
    tokens: Vec<u32>,
    stopped: Option<usize>,
    prompt_tokens: usize,
    /// In front of the answer, until it begins.
    shown: Option<String>,
}

impl<'v> Answer<'v> {
    fn new(vocab: &'v Vocab, args: &GenerateArgs, prompt: &Prompt) -> anyhow::Result<Answer<'v>> {
        Ok(Answer {
            detokenizer: Detokenizer::new(vocab, SpecialText::Hidden),
            stops: StopStrings::new(args.stop.clone()),
            json: args.json,
            timing: args.timing,
            text: String::new(),
            tokens: Vec::new(),
            stopped: None,
            prompt_tokens: prompt.tokens.len(),
            shown: prompt.shown.clone().filter(|_| !args.json),
        })
    }

    /// Shows the text that is continued, once no bar stands in its place any more.
    fn begin(&mut self) -> anyhow::Result<()> {
        if let Some(shown) = self.shown.take() {
            let mut out = output();
            write!(out, "{shown}")?;
            out.flush()?;
        }
        Ok(())
    }

    /// True where a stop string ends the answer.
    fn token(&mut self, id: u32) -> anyhow::Result<bool> {
        if self.stopped.is_some() {
            return Ok(true);
        }
        self.tokens.push(id);
        let text = self.detokenizer.push(id)?;
        let step = self.stops.push(&text);
        self.show(&step.emit)?;
        self.stopped = step.stopped;
        Ok(self.stopped.is_some())
    }

    fn show(&mut self, text: &str) -> anyhow::Result<()> {
        if self.json {
            self.text.push_str(text);
        } else if !text.is_empty() {
            let mut out = output();
            out.write_all(text.as_bytes())?;
            out.flush()?;
        }
        Ok(())
    }

    fn end(&mut self, finish: &Finish, counters: &Counters, opened: &Opened) -> anyhow::Result<()> {
        if self.stopped.is_none() {
            let tail = self.detokenizer.finish();
            let step = self.stops.push(&tail);
            let held = if step.stopped.is_none() { self.stops.finish() } else { String::new() };
            self.show(&(step.emit + &held))?;
        }
        // The first as other programs' interfaces call it, the second in words.
        let (kind, reason) = match finish {
            _ if self.stopped.is_some() => ("stop", "a stop string"),
            Finish::EndToken(_) => ("stop", "end of generation"),
            Finish::TokensMax => ("length", "--max-tokens"),
            Finish::ContextFull => ("length", "the full context (--ctx)"),
            Finish::Cancelled => ("cancelled", "an interrupt"),
            Finish::Failed(_) => ("error", "an error"),
        };
        let rate = |tokens: usize, ns: u64| if ns == 0 { 0.0 } else { tokens as f64 * 1e9 / ns as f64 };
        let prompt_tok_s = rate(counters.prompt_tokens, counters.prompt_ns);
        let decode_tok_s = rate(counters.generated_tokens.saturating_sub(1), counters.decode_ns);
        if self.json {
            let report = json!({
                "text": self.text,
                "tokens": self.tokens,
                "finish": kind,
                "ended_by": reason,
                "prompt_tokens": self.prompt_tokens,
                "prompt_tok_s": prompt_tok_s,
                "decode_tok_s": decode_tok_s,
                "stages": super::timing::reports(&opened.engine.stats(), opened),
            });
            writeln!(output(), "{report}")?;
            return Ok(());
        }
        writeln!(output())?;
        let stages: Vec<String> = opened
            .engine
            .stats()
            .iter()
            .zip(&opened.plan.stages)
            .map(|(s, p)| {
                format!(
                    "{} busy {:.0} %, {} of {} on average",
                    p.name,
                    100.0 * s.times.share(s.times.busy_ns),
                    format_count(s.times.batches as usize, "hand-off"),
                    format_bytes(s.times.bytes_per_hand_off() as u64)
                )
            })
            .collect();
        // Many cards have a line each.
        let between = if stages.len() > 2 { ";\n " } else { "; " };
        let links = super::bench::links_in_words(opened);
        let parts: Vec<String> = stages.into_iter().chain(links).collect();
        tell(format_args!(
            "[{} at {prompt_tok_s:.0} tok/s, {} at {decode_tok_s:.0} tok/s, ended by {reason}{between}{}]",
            format_count(counters.prompt_tokens, "prompt token"),
            format_count(counters.generated_tokens, "token"),
            parts.join(between)
        ));
        if self.timing {
            for line in super::timing::lines(&opened.engine.stats(), &opened.plan.stages) {
                tell(line);
            }
            tell(super::timing::MEANS);
        }
        Ok(())
    }
}
