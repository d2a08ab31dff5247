//! `docs/flags.md`, made from the flag table.
//!
//! Invariant: the same table, the same text; a test compares it with the file.

use clap::{Arg, Command, CommandFactory as _};
use std::fmt::Write as _;

use super::args::Arguments;

/// The manual of all flags as Markdown.
pub fn flags_markdown() -> String {
    let mut out = String::from(
        "# Flags\n\nMade from the flag table (`src/cli/args.rs`); `cargo test --test flags` compares the two.\n",
    );
    let program = Arguments::command();
    for command in program.get_subcommands() {
        section(&mut out, command);
    }
    out
}

fn section(out: &mut String, command: &Command) {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    // Writing to a string cannot fail.
    let _ = write!(out, "\n## tandem {}\n\n{about}\n\n", command.get_name());
    let _ = writeln!(out, "| flag | value | default | meaning |\n| --- | --- | --- | --- |");
    for arg in command.get_arguments().filter(|a| !a.is_hide_set()) {
        let _ = writeln!(out, "{}", row(arg));
    }
}

fn row(arg: &Arg) -> String {
    let long = arg.get_long().map(|l| format!("`--{l}`"));
    let short = arg.get_short().map(|s| format!("`-{s}`"));
    let flag = [long, short].into_iter().flatten().collect::<Vec<_>>().join(", ");
    let takes_value = arg.get_action().takes_values();
    let choices: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|v| takes_value && !v.is_hide_set())
        .map(|v| v.get_name().to_owned())
        .collect();
    let value = if !takes_value {
        String::new()
    } else if choices.is_empty() {
        arg.get_value_names().map(|n| n.join(" ")).unwrap_or_default()
    } else {
        choices.join(", ")
    };
    let defaults: Vec<String> = arg
        .get_default_values()
        .iter()
        .filter(|_| takes_value)
        .map(|v| format!("`{}`", v.to_string_lossy()))
        .collect();
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let cells = [flag, value, defaults.join(", "), help];
    format!("| {} |", cells.map(|text| cell(&text)).join(" | "))
}

/// Text as one cell of a table.
fn cell(text: &str) -> String {
    text.replace('\n', " ").replace('|', "\\|")
}
