//! The program `tandem`: hands the command line to [`tandem::cli`]. No logic here.

fn main() -> std::process::ExitCode {
    tandem::cli::run()
}
