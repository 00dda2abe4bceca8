//! Programs that are installed beside this one, as git has its parts.

use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::failure::Failure;

/// Becomes the program `name`: the one in this program's directory, or the one that `PATH` finds.
/// Returns only when there is none or it cannot be run.
pub(crate) fn run(name: &str, args: &[OsString]) -> Failure {
    let here = env::current_exe().ok();
    let here = here.as_deref().and_then(Path::parent);
    let beside = here.map(|dir| dir.join(name)).filter(|path| path.is_file());
    let program = beside.unwrap_or_else(|| name.into());
    let error = Command::new(&program).args(args).exec();
    let failure = Failure::new(format!("{}: {error}", program.display()));
    match error.kind() {
        ErrorKind::NotFound => failure.advise(format!(
            "{name} is a program of its own: it is built by cargo build --release -p {name}, and \
                make install puts it beside stetfs"
        )),
        _ => failure,
    }
}
