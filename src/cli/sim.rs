//! stub
pub(super) fn run(_: &super::args::SimArgs) -> anyhow::Result<()> { anyhow::bail!("later") }
