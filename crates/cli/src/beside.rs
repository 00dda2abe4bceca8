//! Programs that are installed beside this one, as git has its parts.

use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::failure::Failure;

/// Returns what the program `name` beside this one can be asked for: the words that it prints with
/// `--ids`, one a line. Returns nothing if there is no such program or it does not run.
pub(crate) fn ids(name: &str) -> Vec<String> {
    let Some(program) = find(name) else {
        return Vec::new();
    };
    let printed = Command::new(program).arg("--ids").output();
    let printed = printed.ok().filter(|printed| printed.status.success());
    let text = printed.map(|printed| String::from_utf8_lossy(&printed.stdout).into_owned());
    let text = text.unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Returns the program's path in this program's directory, if it is there.
fn find(name: &str) -> Option<PathBuf> {
    let here = env::current_exe().ok()?;
    let beside = here.parent()?.join(name);
    beside.is_file().then_some(beside)
}

/// Becomes the program `name`: the one in this program's directory, or else the one that `PATH`
/// finds. Returns only if there is none or it cannot be run.
pub(crate) fn run(name: &str, args: &[OsString]) -> Failure {
    let program = find(name).unwrap_or_else(|| name.into());
    let error = Command::new(&program).args(args).exec();
    let failure = Failure::new(format!("{}: {error}", program.display()));
    match error.kind() {
        ErrorKind::NotFound => failure.advise(format!(
            "{name} is a separate program: cargo build --release -p {name} builds it, make install \
                puts it beside stetfs"
        )),
        _ => failure,
    }
}
