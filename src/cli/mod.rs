//! The command line: one file a command, one flag table.
//!
//! Invariants: an error is one line on the error stream (exit 1; 2 for a wrong command line), and so is the signal that
//! ended a run (130 after Ctrl-C, 128 and its number after another); what a command computes goes to the output stream,
//! everything else to the error stream, whose absence changes no exit code.

mod args;
mod bench;
mod cards;
mod detokenize;
mod devices;
mod flags;
mod generate;
mod gpu_probe;
mod gpu_rates;
mod input;
mod inspect;
mod interrupt;
mod load;
mod logits;
mod npy;
mod out_file;
mod plan;
mod profile;
mod progress;
mod sim;
mod streams;
mod synth;
mod timing;
mod tokenize;

use std::error::Error;
use std::ffi::OsString;
use std::fmt;
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::registry::LookupSpan;

pub use flags::flags_markdown;
use streams::{is_reader_gone, tell};

/// Exit code after a wrong command line.
const WRONG_COMMAND_LINE: u8 = 2;

/// Letters of a text that is shown in the hint how to give it.
const TEXT_SHOWN: usize = 20;

/// Runs the program with the arguments of the process; gives its exit code.
pub fn run() -> ExitCode {
    let given: Vec<OsString> = std::env::args_os().collect();
    let arguments = match args::parse(given.iter().cloned()) {
        Ok(arguments) => arguments,
        Err(error) => return not_parsed(&error, &given),
    };
    start_log();
    interrupt::watch();
    crate::gguf::lost_pages::watch();
    let result = match arguments.command {
        args::Command::Generate(a) => generate::run(&a),
        args::Command::Plan(a) => plan::run(&a),
        args::Command::Inspect(a) => inspect::run(&a),
        args::Command::Devices(a) => devices::run(&a),
        args::Command::Bench(a) => bench::run(&a),
        args::Command::Logits(a) => logits::run(&a),
        args::Command::Tokenize(a) => tokenize::run(&a),
        args::Command::Detokenize(a) => detokenize::run(&a),
        args::Command::Sim(a) => sim::run(&a),
        args::Command::Synth(a) => synth::run(&a),
    };
    match (result, interrupt::exit_code()) {
        (Err(error), _) if is_reader_gone(&error) => ExitCode::SUCCESS,
        (_, Some(code)) => {
            interrupt::tell();
            ExitCode::from(code)
        }
        (Ok(()), None) => ExitCode::SUCCESS,
        (Err(error), None) => failed(&error),
    }
}

/// Tells of an error in one line.
fn failed(error: &anyhow::Error) -> ExitCode {
    tell(format_args!("tandem: error: {}", one_line(&format!("{error:#}"))));
    ExitCode::FAILURE
}

/// Help and version as they are; an error of the command line as one line.
fn not_parsed(error: &clap::Error, given: &[OsString]) -> ExitCode {
    if !error.use_stderr() {
        return match error.print().map_err(|error| streams::told(error).into()) {
            Err(error) if !is_reader_gone(&error) => failed(&error),
            _ => ExitCode::SUCCESS,
        };
    }
    let text = error.render().to_string();
    let told = text.split("\n\nUsage:").next().unwrap_or(&text);
    let told = told.split("\n\nFor more information").next().unwrap_or(told);
    let words: Vec<&str> = told.split_whitespace().collect();
    let line = words.join(" ");
    let line = line.strip_prefix("error: ").unwrap_or(&line);
    let line = number_in_words(line, error.source());
    let is_bare = |e: &clap::Error| match e.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(argument)) => !argument.starts_with('-'),
        _ => false,
    };
    let hint = match (error.kind(), args::text_before_a_flag(given)) {
        (ErrorKind::UnknownArgument, _) if is_bare(error) => {
            " (a file needs --model, a text --prompt)".to_owned()
        }
        (ErrorKind::UnknownArgument | ErrorKind::InvalidValue, Some((flag, next))) => {
            let text: String = next.chars().take(TEXT_SHOWN).collect();
            format!(" (a text that begins with `-` goes behind `=`: '{flag}={text}')")
        }
        _ => String::new(),
    };
    tell(format_args!(
        "tandem: error: {}; `tandem --help` and `tandem COMMAND --help` say more",
        one_line(&(line + &hint))
    ));
    ExitCode::from(WRONG_COMMAND_LINE)
}

/// What a number should have been, in place of the standard library's words.
fn number_in_words(line: &str, cause: Option<&(dyn Error + 'static)>) -> String {
    let Some(cause) = cause else { return line.to_owned() };
    let words = match cause.downcast_ref::<ParseIntError>().map(ParseIntError::kind) {
        Some(IntErrorKind::PosOverflow | IntErrorKind::NegOverflow) => "the number is too large",
        Some(_) => "not a whole number",
        None if cause.is::<ParseFloatError>() => "not a number",
        None => return line.to_owned(),
    };
    match line.strip_suffix(&cause.to_string()) {
        Some(start) => format!("{start}{words}"),
        None => line.to_owned(),
    }
}

/// The most characters of an error that come from a user or a file.
const LINE_MAX: usize = 2000;

/// Text of a user's, a file's or a template's making on one line: control characters as escapes, and not without end.
fn one_line(text: &str) -> String {
    let mut line = String::new();
    for (count, c) in text.chars().enumerate() {
        if count == LINE_MAX {
            line.push_str(" ...");
            break;
        }
        if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line
}

/// Warnings go to the error stream; `RUST_LOG` (the platform's own variable) names other levels.
fn start_log() {
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::util::SubscriberInitExt as _;
    let named = std::env::var("RUST_LOG").ok().and_then(|v| v.parse().ok());
    let levels = named
        .unwrap_or_else(|| tracing_subscriber::filter::Targets::new().with_default(tracing::Level::WARN));
    let lines = tracing_subscriber::fmt::layer().with_writer(streams::lines).event_format(LogLine);
    tracing_subscriber::registry().with(lines).with(levels).init();
}

/// `tandem: warn: MESSAGE fields`, as errors are written.
struct LogLine;

impl<S, N> FormatEvent<S, N> for LogLine
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &tracing_subscriber::fmt::FmtContext<'_, S, N>,
        mut out: Writer<'_>,
        event: &tracing::Event<'_>,
    ) -> fmt::Result {
        write!(out, "tandem: {}: ", event.metadata().level().as_str().to_lowercase())?;
        context.field_format().format_fields(out.by_ref(), event)?;
        writeln!(out)
    }
}
