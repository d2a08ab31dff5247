//! stub
pub(super) fn run(_: &super::args::InspectArgs) -> anyhow::Result<()> { anyhow::bail!("later") }
