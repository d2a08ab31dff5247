//! stub
pub(super) fn run(_: &super::args::DetokenizeArgs) -> anyhow::Result<()> { anyhow::bail!("later") }
