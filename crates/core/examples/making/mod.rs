// Every example begins with a volume, and stetfs has no formatter of its own.

/// Makes an ext4 volume of `mib` MiB in a new file, by mke2fs (package e2fsprogs).
pub(crate) fn mke2fs(path: &std::path::Path, mib: u64) -> std::io::Result<()> {
    std::fs::File::create(path)?.set_len(mib << 20)?;
    let mut mke2fs = std::process::Command::new("mke2fs");
    let status = mke2fs.args(["-q", "-F", "-t", "ext4"]).arg(path).status()?;
    if status.success() {
        Ok(())
    } else {
        Err(std::io::Error::other(format!("mke2fs: {status}")))
    }
}
