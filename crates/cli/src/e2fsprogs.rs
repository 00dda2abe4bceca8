//! Finding and running the programs of e2fsprogs.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::{Failure, Result};

/// Returns a command for `program` (mke2fs, e2fsck), found on the path or in the directories that
/// systems keep for root.
pub(crate) fn command(program: &str) -> Result<Command> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(program))
        .find(|file| is_program(file));
    match found {
        Some(file) => Ok(Command::new(file)),
        None => Err(Failure::new(format!("{program} is not installed"))
            .advise("install e2fsprogs, on Debian: apt-get install e2fsprogs")),
    }
}

fn is_program(file: &Path) -> bool {
    file.is_file() && rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_not_there_is_named_with_its_package() {
        let failure = super::command("mke3fs").unwrap_err().to_string();
        assert!(
            failure.contains("mke3fs is not installed") && failure.contains("e2fsprogs"),
            "{failure}"
        );
    }
}
