//! Asking the server of a mount. If the server is stopped or hangs, whoever asks it waits in the
//! kernel and cannot be killed. So another process asks first ([`Question`]).

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use stetfs_fuse::mountinfo;
use stetfs_fuse::question::Question;
use stetfs_media::lock_holder;

use crate::failure::{Explain, Failure, Result};
use crate::mounts;

/// How long a server may be silent before the user is told which one it is.
const SILENCE: Duration = Duration::from_secs(5);
/// How long a server may be silent before the command gives up, unless the user chose a time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the statistics of the server of the mount on `dir`, as JSON.
pub(crate) fn query_stats(dir: &Path) -> Result<String> {
    wait(dir, PATIENCE)?;
    stetfs_fuse::query_stats(dir).during(|| dir.display().to_string())
}

/// Returns what the server of the mount on `dir` says of itself.
pub(crate) fn of_server(dir: &Path) -> Result<Value> {
    let mut stats: Value = serde_json::from_str(&query_stats(dir)?)?;
    Ok(stats["server"].take())
}

/// Returns why the mount on `dir` was not stopped when that was asked for last.
pub(crate) fn refusal(dir: &Path) -> Option<String> {
    let said = of_server(dir).ok()?;
    Some(said["refused"].as_str()?.to_owned())
}

/// Waits until the server of the mount on `dir` answers, at most `timeout`. Tells the user which
/// server it is when that takes long. Returns at once if `dir` is no mount of ours.
pub(crate) fn wait(dir: &Path, timeout: Duration) -> Result<()> {
    let dir = mounts::resolved(dir);
    let mount = mountinfo::mounted_on(&dir).ok().flatten();
    let Some(mount) = mount.filter(mountinfo::MountEntry::is_stetfs) else {
        return Ok(());
    };
    let Ok(mut question) = Question::ask(&dir) else {
        return Ok(());
    };
    let silence = SILENCE.min(timeout);
    if question.is_answered(silence) {
        return Ok(());
    }
    let (image, shown) = (mount.image(), dir.display());
    let pid = lock_holder(&image).map(|holder| holder.pid);
    let pid = pid.map_or_else(|| "PROCESS".to_owned(), |pid| pid.to_string());
    let who = format!(
        "the server (process {pid}) of {} on {shown}",
        image.display()
    );
    let advice = format!(
        "if it was stopped: kill -CONT {pid}; to give it up: kill -KILL {pid} (everything that was \
            fsynced is in the image); to leave it alone: stetfs umount --lazy {shown}"
    );
    eprintln!(
        "stetfs: {who} has not answered for {} s; waiting up to {} s in all\nstetfs: {advice}",
        silence.as_secs(),
        timeout.as_secs()
    );
    if question.is_answered(timeout - silence) {
        return Ok(());
    }
    let message = format!("{who} has not answered for {} s", timeout.as_secs());
    Err(Failure::new(message).advise(advice))
}
