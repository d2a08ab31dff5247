//! The command line: one file a command, one flag table.

/// Runs the program with the arguments of the process; gives its exit code.
pub fn run() -> std::process::ExitCode {
    std::process::ExitCode::FAILURE
}
