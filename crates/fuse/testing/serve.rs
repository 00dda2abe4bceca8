//! The smallest program around this crate: `stetfs-serve IMAGE DIR [OPTIONS] [--background]`. The
//! tests mount with it; people mount with `stetfs mount`.
#![forbid(unsafe_code)]

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use stetfs::Fs;
use stetfs_fuse::background::{self, Waiting};
use stetfs_fuse::{Ended, Options};
use stetfs_media::FileOptions;

fn main() -> ExitCode {
    stetfs_fuse::run_if_asked();
    match run() {
        Ok(code) => code,
        Err(e) => {
            eprintln!("stetfs-serve: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode, Box<dyn Error>> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let flag = |args: &mut Vec<String>, name: &str| {
        let before = args.len();
        args.retain(|a| a != name);
        args.len() < before
    };
    if flag(&mut args, "--background") {
        let mut server = Command::new(std::env::current_exe()?);
        background::start({
            server.args(&args).arg("--server");
            server
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let server = flag(&mut args, "--server");
    let [image, dir, rest @ ..] = &args[..] else {
        return Err("usage: stetfs-serve IMAGE DIR [OPTIONS] [--background]".into());
    };
    let options = Options::parse(rest.first().map_or("", String::as_str))?;
    let image = PathBuf::from(image).canonicalize()?;
    let dir = stetfs_fuse::check_dir(&PathBuf::from(dir))?;
    stetfs_fuse::prepare_process(Some(options.core.memory));
    stetfs_fuse::wait_for_release(&image, Duration::from_secs(30), |_| ());
    let device = FileOptions::default()
        .read_only(options.core.read_only)
        .direct(options.core.direct)
        .open(&image)?;
    let (fs, report) = Fs::mount(Arc::new(device), options.core)?;
    for warning in &report.warnings {
        eprintln!("stetfs-serve: {warning}");
    }
    let ready = |_| {
        if server {
            return background::detach(log_file());
        }
        println!("mounted");
        std::io::stdout().flush()?;
        Ok(Waiting::nobody())
    };
    let ended = stetfs_fuse::serve(&fs, &image, &dir, &options.fuse, ready)?;
    eprintln!("stetfs-serve: {ended:?}");
    Ok(match ended {
        Ended::Unmounted | Ended::Signal(_) => ExitCode::SUCCESS,
        Ended::Cut(_) => ExitCode::from(3),
    })
}

/// Returns standard error, if it is a file: a terminal or pipe is not kept.
fn log_file() -> Option<File> {
    let file = File::options().append(true).open("/proc/self/fd/2").ok()?;
    file.metadata().is_ok_and(|m| m.is_file()).then_some(file)
}
