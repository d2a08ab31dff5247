//! The flag table: every command and every flag, with its unit, its default and its help.
//!
//! Invariant: this is the only place that reads the command line; `docs/flags.md` is made from it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::{Args, CommandFactory as _, Parser, Subcommand};

use super::devices::cache_folder;
use super::out_file::Models;
use crate::device::cuda::faults::ForcedFault;
use crate::device::cuda::kernels::KernelSettings;
use crate::device::cuda::vendor::Vendor;
use crate::engine::linking::LinkChoice;
use crate::model::facts::{Activations, KvFormat};

/// The model that ships in the repository.
const MODEL: &str = "models/tiny-qwen3moe.gguf";

/// Runs one large language model over the cards of one computer, split by layers.
///
/// Without a command, `generate` runs, with whatever flags are given: alone it writes text from a built-in prompt, on
/// two virtual cards where there is no GPU.
#[derive(Debug, Parser)]
#[command(name = "tandem", version, max_term_width = 100, override_usage = "tandem [COMMAND] [FLAGS]")]
pub(super) struct Arguments {
    #[command(subcommand)]
    pub(super) command: Command,
}

/// Reads the command line; `generate` is put in where no command is named.
pub(super) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Arguments, clap::Error> {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let names_no_command = match arguments.get(1) {
        None => true,
        Some(first) => {
            let of_the_program = ["-h", "--help", "-V", "--version"].iter().any(|flag| first == flag);
            !of_the_program && first.to_string_lossy().starts_with('-')
        }
    };
    if names_no_command {
        arguments.insert(arguments.len().min(1), "generate".into());
    }
    Arguments::try_parse_from(arguments)
}

/// The first flag of a text whose next argument begins with `-`, with that argument: a flag, or a text that has to be
/// behind `=`.
pub(super) fn text_before_a_flag(arguments: &[OsString]) -> Option<(&str, &str)> {
    let table = Arguments::command();
    let flags: Vec<_> = table.get_subcommands().flat_map(clap::Command::get_arguments).collect();
    let is_of_a_text = |word: &str| {
        let is_named = |flag: &&&clap::Arg| match word.strip_prefix("--") {
            Some(long) => flag.get_long() == Some(long),
            None => word
                .strip_prefix('-')
                .is_some_and(|short| flag.get_short().is_some_and(|c| short == c.to_string())),
        };
        let texts = |flag: &clap::Arg| flag.get_value_names().is_some_and(|names| names[0] == "TEXT");
        flags.iter().find(is_named).is_some_and(|flag| texts(flag))
    };
    arguments.windows(2).find_map(|pair| {
        let (flag, next) = (pair[0].to_str()?, pair[1].to_str()?);
        (next.starts_with('-') && is_of_a_text(flag)).then_some((flag, next))
    })
}

/// A token id of a list.
fn token_id(text: &str) -> Result<u32, String> {
    text.trim().parse().map_err(|_| "token ids are whole numbers, separated by commas".to_owned())
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Generates text (the default command)
    Generate(Box<GenerateArgs>),
    /// Shows which card would run which layers, with every byte, without loading
    Plan(PlanArgs),
    /// Shows what a model file holds
    Inspect(InspectArgs),
    /// Lists the cards of this computer
    Devices(DevicesArgs),
    /// Measures prompt and decode speed
    Bench(BenchArgs),
    /// Writes the logits of given tokens to a .npy file
    Logits(LogitsArgs),
    /// Turns text into token ids
    Tokenize(TokenizeArgs),
    /// Turns token ids into text
    Detokenize(DetokenizeArgs),
    /// Runs the engine's state machines under a seeded scheduler with faults
    Sim(SimArgs),
    /// Writes a model file of a real geometry with random weights, to try a computer before a long download
    Synth(SynthArgs),
}

#[derive(Clone, Debug, Args)]
pub(super) struct ModelArgs {
    /// Model file (GGUF); of a split set the first file
    #[arg(short, long, value_name = "FILE", default_value = MODEL)]
    model: PathBuf,
}

impl ModelArgs {
    /// The model's path. Without `--model` the file of the repository must be there.
    pub(super) fn path(&self) -> anyhow::Result<&Path> {
        if self.model == Path::new(MODEL) && !self.model.exists() {
            bail!(
                "{MODEL}: not in this folder; give --model FILE, or run tandem in the folder of its sources"
            );
        }
        Ok(&self.model)
    }
}

/// The run-time compilers of the kernels.
#[derive(Clone, Debug, Args)]
pub(super) struct CompilerArgs {
    /// The run-time compiler of CUDA cards, a libnvrtc.so [default: searched for, see `tandem devices`]
    #[arg(long, value_name = "FILE")]
    pub(super) nvrtc: Option<PathBuf>,
    /// The run-time compiler of AMD cards, a libhiprtc.so [default: searched for, see `tandem devices`]
    #[arg(long, value_name = "FILE")]
    pub(super) hiprtc: Option<PathBuf>,
}

impl CompilerArgs {
    /// That of a vendor's cards, where it was named.
    pub(super) fn of(&self, vendor: Vendor) -> Option<&Path> {
        vendor.one_of(&self.nvrtc, &self.hiprtc).as_deref()
    }

    /// Refuses what is no file, also where no card would ask for it. A bare name is left to the system's search.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        for (flag, path) in [("--nvrtc", &self.nvrtc), ("--hiprtc", &self.hiprtc)] {
            let Some(path) = path.as_deref().filter(|path| path.components().count() > 1) else { continue };
            let what = match std::fs::metadata(path) {
                Ok(found) if found.is_file() => continue,
                // A pipe that nobody writes to would be waited for.
                Ok(_) => "is not a regular file",
                Err(_) => "not found",
            };
            bail!("{flag} {}: {what}; give the library's path, or leave the flag out", path.display());
        }
        Ok(())
    }

    /// The same with the folder of compiled kernels.
    pub(super) fn kernel_settings(&self) -> KernelSettings {
        KernelSettings {
            nvrtc: self.nvrtc.clone(),
            hiprtc: self.hiprtc.clone(),
            cache: cache_folder().map(|folder| folder.join("kernels")),
        }
    }
}

/// Flags of every command that plans.
#[derive(Clone, Debug, Args)]
pub(super) struct SplitArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// Cards, in the order of the split unless --gpu-order says another: numbers of CUDA cards as nvidia-smi shows
    /// them (0,1), `hip:0` for AMD card 0 (no AMD card has run this program yet), `cpu:N` for N virtual cards
    /// [default: every usable CUDA card, else cpu:2]
    #[arg(long, value_name = "CARDS")]
    pub(super) gpus: Option<String>,
    #[command(flatten)]
    pub(super) compilers: CompilerArgs,
    /// Let GPUs fail on purpose, to see what follows: out-of-memory; lost-card (each call fails after some launches);
    /// kernel (one reaches outside its memory); no-nvrtc (no run-time compiler); old-driver (it refuses what the
    /// compiler makes); peer-test (a peer link changes what crosses it); link-stop (a link stops after 4 batches: prompts and tokens).
    /// lost-card:1 for card 1 alone. One that nothing meets is an error
    #[arg(long, value_name = "FAULT")]
    pub(super) force_fault: Option<ForcedFault>,
    /// Memory of each card, e.g. 8GiB,4GiB (one value: the same for all; units are powers of 1,024, GB the same as GiB)
    /// [default: a GPU's free memory, less 256 MiB or a 16th of it for its driver; virtual cards share the machine's
    /// available memory equally]
    #[arg(long, value_name = "SIZES")]
    pub(super) card_memory: Option<String>,
    /// First layer of each card after the first, e.g. 18,32 [default: the planner's choice]
    #[arg(long, value_name = "LAYERS", value_delimiter = ',')]
    pub(super) layer_split: Option<Vec<usize>>,
    /// Order of the cards: as-given, fastest-last, or positions in --gpus such as 2,0,1, where 0 is the first [default:
    /// the planner's choice]
    #[arg(long, value_name = "ORDER")]
    pub(super) gpu_order: Option<String>,
    /// Bytes left free on the first card, e.g. 512MiB
    #[arg(long, value_name = "SIZE", default_value = "0")]
    pub(super) vram_reserve: String,
    /// Bytes left free on each later card [default: as --vram-reserve]
    #[arg(long, value_name = "SIZE")]
    pub(super) vram_reserve_later: Option<String>,
    /// Use the first card alone if everything fits there
    #[arg(long)]
    pub(super) skip_split_if_fits: bool,
    /// How rows (one token's values each) travel between GPUs: the fastest way that passes its test at start (auto),
    /// into the next card's memory (peer), through host memory that both cards reach (mapped), or through host memory
    /// with copies (staged). Virtual cards share one memory, where rows stay in place (shown as local) unless staged is
    /// asked for
    #[arg(long, value_enum, value_name = "KIND", default_value = "auto")]
    pub(super) link: LinkChoice,
    /// Positions of a sequence: the most tokens of its prompt and answer together [default: 4096, or the model's context
    /// if that is smaller]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(super) ctx: Option<usize>,
    /// How keys and values are kept [default: f16; logits: f32]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(super) kv: Option<KvFormat>,
    /// Tokens of a prompt that are read together, at most
    #[arg(long, value_name = "N", default_value_t = 512, allow_negative_numbers = true)]
    pub(super) chunk: usize,
    /// Threads that all virtual cards share [default: every allowed CPU]
    #[arg(long, value_name = "N", conflicts_with = "card_threads")]
    pub(super) threads: Option<usize>,
    /// Threads of each virtual card, which then compute side by side
    #[arg(long, value_name = "N")]
    pub(super) card_threads: Option<usize>,
    /// Instructions of virtual cards: plain, avx2, avx512 [default: the best that this CPU has]
    #[arg(long, value_name = "TIER")]
    pub(super) cpu_tier: Option<String>,
    /// What quantised weights are multiplied with: values rounded to 8 bits, with a scale for each 32 or 256 of them
    /// (int8), or values as they are (f32: slow, to compare with)
    #[arg(long, value_enum, value_name = "KIND", default_value = "int8")]
    pub(super) activations: Activations,
}

#[derive(Clone, Debug, Args)]
pub(super) struct SequencesArg {
    /// Sequences at once; one prompt uses one of them, memory is planned for all
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    pub(super) sequences: usize,
}

#[derive(Clone, Debug, Args)]
pub(super) struct GenerateArgs {
    #[command(flatten)]
    pub(super) split: SplitArgs,
    #[command(flatten)]
    pub(super) sequences: SequencesArg,
    /// Prompt; special tokens in it are recognised; one that begins with `-` goes behind `=` (--prompt=-TEXT). Without any prompt: what comes on standard input if that is no
    /// terminal; where nothing does, the model of the repository answers a built-in question
    #[arg(short, long, value_name = "TEXT", conflicts_with_all = ["prompt_file", "prompt_tokens"])]
    pub(super) prompt: Option<String>,
    /// Prompt from a file; `-` is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "prompt_tokens")]
    pub(super) prompt_file: Option<PathBuf>,
    /// Prompt as token ids
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = token_id)]
    pub(super) prompt_tokens: Option<Vec<u32>>,
    /// Treat the prompt as a user's message and apply the model's chat template
    #[arg(long, conflicts_with = "prompt_tokens")]
    pub(super) chat: bool,
    /// System message of the chat; --system=-TEXT where it begins with `-`
    #[arg(long, value_name = "TEXT", requires = "chat")]
    pub(super) system: Option<String>,
    /// The most tokens to generate
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128, allow_negative_numbers = true)]
    pub(super) max_tokens: usize,
    /// Print one JSON object in place of text
    #[arg(long)]
    pub(super) json: bool,
    /// Print where the time of each card went: busy, waiting, copies
    #[arg(long)]
    pub(super) timing: bool,
    /// Go on after end-of-generation tokens
    #[arg(long)]
    pub(super) ignore_eos: bool,
    /// 0: greedy; else logits are divided by it
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(super) temperature: f32,
    /// Only the best K tokens; 0: all
    #[arg(long, value_name = "K", default_value_t = 0, allow_negative_numbers = true)]
    pub(super) top_k: usize,
    /// Only the fewest tokens whose probabilities reach P
    #[arg(long, value_name = "P", default_value_t = 1.0, allow_negative_numbers = true)]
    pub(super) top_p: f32,
    /// Only tokens of at least this share of the best one's probability
    #[arg(long, value_name = "P", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(super) min_p: f32,
    /// Makes recent tokens less likely; 1: off
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true)]
    pub(super) repeat_penalty: f32,
    /// Taken from the logit of each recent token
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(super) presence_penalty: f32,
    /// How many of the last tokens are recent
    #[arg(long, value_name = "N", default_value_t = 64, allow_negative_numbers = true)]
    pub(super) penalty_window: usize,
    /// Seed of the draws
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub(super) seed: u64,
    /// Text that ends the answer; may be given several times; --stop=-TEXT where it begins with `-`
    #[arg(long, value_name = "TEXT")]
    pub(super) stop: Vec<String>,
}

#[derive(Debug, Args)]
pub(super) struct PlanArgs {
    #[command(flatten)]
    pub(super) split: SplitArgs,
    #[command(flatten)]
    pub(super) sequences: SequencesArg,
    /// Print the plan as JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct InspectArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// List every tensor
    #[arg(long)]
    pub(super) tensors: bool,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct DevicesArgs {
    /// Measure memory, product and link rates
    #[arg(long)]
    pub(super) measure: bool,
    #[command(flatten)]
    pub(super) compilers: CompilerArgs,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct BenchArgs {
    #[command(flatten)]
    pub(super) split: SplitArgs,
    /// Sequences that run side by side
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    pub(super) sequences: usize,
    /// Prompt tokens
    #[arg(long, value_name = "N", default_value_t = 512, allow_negative_numbers = true)]
    pub(super) pp: usize,
    /// Decoded tokens, behind the prompt
    #[arg(long, value_name = "N", default_value_t = 128, allow_negative_numbers = true)]
    pub(super) tg: usize,
    /// Positions in front of the prompt, which attention reads and nothing computes
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    pub(super) depth: usize,
    /// Measured repetitions, after one that is not
    #[arg(long, value_name = "R", default_value_t = 3, allow_negative_numbers = true)]
    pub(super) reps: usize,
    /// Token ids, separated by blanks, commas or new lines: as many as --depth, --pp and --tg together [default:
    /// pseudo-random]
    #[arg(long, value_name = "FILE")]
    pub(super) tokens_file: Option<PathBuf>,
    /// Print where the time of each card went: busy, waiting, copies
    #[arg(long)]
    pub(super) timing: bool,
    /// In place of rates, on GPUs alone: take one decode pass of all sequences (a window) behind the prompt, and the
    /// prompt's last chunk, apart into kinds of launches on each card
    #[arg(long)]
    pub(super) profile: bool,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Of every command that writes a file.
#[derive(Debug, Args)]
pub(super) struct ForceArg {
    /// Replace the file of --out also where it is a model file (GGUF); other files are replaced without this
    #[arg(long)]
    force: bool,
}

impl ForceArg {
    /// What becomes of a model file that has the name of the result.
    pub(super) fn models(&self) -> Models {
        if self.force { Models::Replaced } else { Models::Kept }
    }
}

#[derive(Debug, Args)]
pub(super) struct LogitsArgs {
    #[command(flatten)]
    pub(super) split: SplitArgs,
    /// Token ids
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = token_id, required = true)]
    pub(super) tokens: Vec<u32>,
    /// Output file: float32 [tokens, vocabulary]
    #[arg(long, value_name = "FILE")]
    pub(super) out: PathBuf,
    #[command(flatten)]
    pub(super) force: ForceArg,
    /// Read so many tokens at a time (1 to 8: a window, as decode does) instead of chunks
    #[arg(long, value_name = "N", conflicts_with = "chunk")]
    pub(super) window: Option<usize>,
}

#[derive(Debug, Args)]
pub(super) struct TokenizeArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// Text; --text=-TEXT where it begins with `-`
    #[arg(long, value_name = "TEXT")]
    pub(super) text: String,
    /// Recognise special tokens in the text
    #[arg(long)]
    pub(super) parse_special: bool,
    /// Add the model's begin and end tokens where it asks for them
    #[arg(long)]
    pub(super) add_special: bool,
    /// Print a JSON array of ids
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct DetokenizeArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// Token ids
    #[arg(long, value_name = "IDS", value_delimiter = ',', value_parser = token_id, required = true)]
    pub(super) tokens: Vec<u32>,
    /// Show special tokens
    #[arg(long)]
    pub(super) special: bool,
    /// Print the text alone, without a new line behind it
    #[arg(long)]
    pub(super) raw: bool,
}

#[derive(Debug, Args)]
pub(super) struct SimArgs {
    /// First seed
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    pub(super) seed: u64,
    /// Schedules, with rising seeds
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) schedules: u64,
    /// Print JSON, one object a schedule
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Args)]
pub(super) struct SynthArgs {
    /// Geometry: a name (qwen3-30b-a3b, qwen3-235b-a22b, mixtral-8x7b, llama-70b, llama-8b, smollm2-135m; bench-1024 for
    /// bench/compare.sh), or a model file whose keys, tokenizer and tensors are taken
    #[arg(long, value_name = "NAME|FILE")]
    pub(super) like: String,
    /// Type of the matrices, e.g. q4_k, iq3_s, q8_0; the head gets q6_k where this has fewer bits; rows that are no
    /// whole blocks get q8_0 [default: q4_k; with a file: its own types]
    #[arg(long, value_name = "TYPE")]
    pub(super) quant: Option<String>,
    /// Layers, in place of the model's own number
    #[arg(long, value_name = "N")]
    pub(super) layers: Option<usize>,
    /// Experts of each layer, in place of the model's own number
    #[arg(long, value_name = "N")]
    pub(super) experts: Option<usize>,
    /// Seed of the weights
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    pub(super) seed: u64,
    /// File to write
    #[arg(long, value_name = "FILE")]
    pub(super) out: PathBuf,
    #[command(flatten)]
    pub(super) force: ForceArg,
}
