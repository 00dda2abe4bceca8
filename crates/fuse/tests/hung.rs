//! A server that does not answer: the companion reports it, and aborts the connection if it was
//! asked to. So nobody waits for ever, and sync(1) of the machine does not either.

mod support;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use support::Volume;

#[test]
fn a_stopped_server_is_named_and_given_up() {
    need!(support::root_and_fuse());
    let volume = Volume::new(64, &[]);
    let log = volume.scratch.path().join("log");
    let mut server = volume
        .serve_command("abort_hung=4,transport=dev")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log).unwrap())
        .spawn()
        .unwrap();
    support::wait_until("it is mounted", || {
        stetfs_fuse::mountinfo::mounted_on(&volume.dir)
            .unwrap()
            .is_some()
    });
    let pid = Pid::from_child(&server);
    let file = File::create(volume.path("f")).unwrap();
    file.write_all_at(b"confirmed", 0).unwrap();
    file.sync_all().unwrap();

    // The companion may begin to count as soon as the server is stopped.
    let began = Instant::now();
    support::stop(pid);
    // This waits in the kernel, and no signal ends it.
    let told = fs::metadata(volume.path("nothing")).unwrap_err();
    assert!(
        [libc::ENOTCONN, libc::ECONNABORTED].contains(&told.raw_os_error().unwrap()),
        "{told}"
    );
    assert!(
        began.elapsed() >= Duration::from_secs(4),
        "{:?}",
        began.elapsed()
    );
    rustix::fs::sync();
    drop(file);
    support::wait_until("the companion says so", || {
        let said = fs::read_to_string(&log).unwrap();
        let whose = format!("the server (process {})", server.id());
        said.contains(&whose) && said.contains("the connection was aborted")
    });

    kill_process(pid, Signal::KILL).unwrap();
    server.wait().unwrap();
    support::wait_for_release(&volume.dir);
    let server = volume.mount("");
    assert_eq!(fs::read(volume.path("f")).unwrap(), b"confirmed");
    volume.unmount(server);
}

/// A slow server is waited for, without a report and without harm.
#[test]
fn a_server_that_goes_on_is_not_given_up() {
    need!(support::root_and_fuse());
    let volume = Volume::new(64, &[]);
    let server = volume.mount("abort_hung=20,transport=dev");
    server.signal(Signal::STOP);
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| fs::metadata(volume.path("nothing")).unwrap_err());
        std::thread::sleep(Duration::from_secs(2));
        server.signal(Signal::CONT);
        assert_eq!(asks.join().unwrap().raw_os_error(), Some(libc::ENOENT));
    });
    volume.unmount(server);
}
