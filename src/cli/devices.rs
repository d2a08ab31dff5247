//! stub
pub(super) fn run(_: &super::args::DevicesArgs) -> anyhow::Result<()> { anyhow::bail!("later") }
