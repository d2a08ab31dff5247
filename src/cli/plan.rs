//! stub
pub(super) fn run(_: &super::args::PlanArgs) -> anyhow::Result<()> { anyhow::bail!("later") }
