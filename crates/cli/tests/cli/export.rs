//! nand export: a part's device as a file and to NBD clients, used by programs that know nothing of
//! it. Everything that can hang has a time limit: a loop device whose server is gone would
//! otherwise hang the whole machine.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::fs::FallocateFlags;
use rustix::process::{Pid, Signal, kill_process};

use crate::run::{Lab, STETFS, bounded, has, json, stetfs, unmount, wait_until};

fn can_export(programs: &[&str], root: bool) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !Path::new("/dev/fuse").exists() || !is_root && (root || !has("fusermount3")) {
        eprintln!("SKIPPED: /dev/fuse and root are needed");
        return false;
    }
    if root && !Path::new("/dev/loop-control").exists() {
        eprintln!("SKIPPED: loop devices are needed");
        return false;
    }
    programs.iter().all(|program| has(program))
}

/// A part, the directory in which it is exported, and a place to mount what is on it.
struct Export {
    lab: Lab,
    nand: String,
    dir: String,
    mnt: String,
    device: Option<String>,
}

impl Export {
    fn new() -> Self {
        let lab = Lab::new();
        let [nand, dir, mnt] = ["flash.nand", "dev", "mnt"].map(|name| lab.str(name));
        stetfs(&["nand", "create", &nand, "--size", "40M"]).ok();
        fs::create_dir(&dir).unwrap();
        fs::create_dir(&mnt).unwrap();
        Self {
            lab,
            nand,
            dir,
            mnt,
            device: None,
        }
    }

    #[track_caller]
    fn up(&self, args: &[&str]) {
        let mut all = vec!["nand", "export"];
        all.extend(args);
        all.extend([self.nand.as_str(), self.dir.as_str()]);
        all.insert(0, STETFS);
        bounded(all[0], &all[1..]).ok();
    }

    fn file(&self) -> String {
        format!("{}/device", self.dir)
    }

    fn stats(&self) -> serde_json::Value {
        json(&stetfs(&["stats", "--json", &self.dir]).ok())
    }

    fn pid(&self) -> Pid {
        let pid = self.stats()["server"]["pid"].as_i64().unwrap();
        Pid::from_raw(pid as i32).unwrap()
    }

    /// Puts a loop device on the file.
    #[track_caller]
    fn attach(&mut self) -> String {
        let file = self.file();
        let args = ["--show", "--find", "--direct-io=on", "--sector-size", "512"];
        let device = bounded("losetup", &[&args[..], &[file.as_str()]].concat()).ok();
        self.device = Some(device.trim().to_owned());
        device.trim().to_owned()
    }

    #[track_caller]
    fn detach(&mut self) {
        let device = self.device.take().unwrap();
        bounded("losetup", &["-d", &device]).ok();
    }

    #[track_caller]
    fn mount(&self, options: &str) {
        let device = self.device.as_deref().unwrap();
        bounded("mount", &["-o", options, device, &self.mnt]).ok();
    }

    #[track_caller]
    fn umount(&self) {
        unmount(&self.mnt);
    }

    #[track_caller]
    fn down(&self) {
        // The kernel closes a detached loop device's file a little later.
        wait_until("the export is unmounted", || {
            let ran = bounded(STETFS, &["umount", &self.dir]);
            assert!(ran.code == 0 || ran.err.contains("in use"), "{ran:#?}");
            ran.code == 0
        });
        let check = stetfs(&["nand", "check", &self.nand]).ok();
        assert!(check.contains("the map is sound"), "{check}");
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        if let Some(device) = &self.device {
            bounded("umount", &[&self.mnt]);
            bounded("losetup", &["-d", device]);
        }
        bounded("umount", &["-l", &self.dir]);
    }
}

#[test]
fn the_file_is_the_device() {
    if !can_export(&[], false) {
        return;
    }
    let export = Export::new();
    export.up(&[]);
    let capacity = json(&stetfs(&["stats", "--json", &export.dir]).ok());
    assert_eq!(capacity["server"]["image"], export.nand.as_str());
    assert_eq!(capacity["snoop"], serde_json::Value::Null);
    let open = || File::options().read(true).write(true).open(export.file());
    let file = open().unwrap();
    let size = file.metadata().unwrap().size();
    assert!(size > 30 << 20 && size.is_multiple_of(512), "{size}");
    let names: Vec<_> = fs::read_dir(&export.dir)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(names, ["device"]);
    let statvfs = rustix::fs::statvfs(&export.dir).unwrap();
    assert_eq!(statvfs.f_blocks * statvfs.f_frsize, size);

    let mut model = vec![0; 8192];
    let mut write = |at: usize, bytes: &[u8]| {
        file.write_all_at(bytes, at as u64).unwrap();
        model[at..at + bytes.len()].copy_from_slice(bytes);
    };
    write(700, &[7; 3000]);
    write(1023, b"x");
    write(6000, &[8; 2000]);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for (mode, at, len) in [(punch, 900, 1500), (FallocateFlags::ZERO_RANGE, 6100, 700)] {
        rustix::fs::fallocate(&file, mode, at, len).unwrap();
        model[at as usize..(at + len) as usize].fill(0);
    }
    file.sync_all().unwrap();
    let read = || {
        let mut found = vec![1; 8192];
        open().unwrap().read_exact_at(&mut found, 0).unwrap();
        found
    };
    assert!(read() == model);
    // The size cannot change.
    file.set_len(size + 512).unwrap_err();
    file.set_len(0).unwrap_err();
    file.write_at(b"x", size).unwrap_err();
    rustix::fs::fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096).unwrap_err();
    assert_eq!(file.read_at(&mut [0; 10], size - 3).unwrap(), 3);
    // Nobody else can use the part, and nobody can unmount the directory while the file is open.
    stetfs(&["nand", "info", &export.nand]).fails(1, &["in use"]);
    stetfs(&["umount", &export.dir]).fails(1, &["in use"]);
    drop(file);
    export.down();
    export.up(&["--snoop", "--resident", "--watchdog", "0"]);
    assert!(read() == model);
    assert_eq!(export.stats()["snoop"]["follows"], false);
    export.down();
}

/// A file system that knows nothing of us is made, mounted, filled, checked and compared; what it
/// logged is not programmed again.
#[test]
fn the_kernels_ext4_is_remapped_home() {
    if !can_export(&["mkfs.ext4", "losetup", "e2fsck", "diff", "fio"], true) {
        return;
    }
    let tree = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    let mut export = Export::new();
    export.up(&["--snoop"]);
    let device = export.attach();
    bounded("mkfs.ext4", &["-q", "-b", "1024", &device]).ok();
    for mode in ["journal", "ordered"] {
        export.mount(&format!("data={mode}"));
        let copy = format!("{}/{mode}", export.mnt);
        bounded("cp", &["-a", tree, &copy]).ok();
        let file = format!("--filename={}/verified", export.mnt);
        let job = [
            "--name=v",
            "--rw=randwrite",
            "--bs=1k-9k",
            "--size=2m",
            "--io_size=4m",
        ];
        let verify = [
            "--fsync=16",
            "--verify=crc32c",
            "--do_verify=1",
            "--verify_fatal=1",
            // Without this, fio leaves a file in its working directory.
            "--verify_state_save=0",
        ];
        bounded("fio", &[&job[..], &verify[..], &[file.as_str()]].concat()).ok();
        export.umount();
        bounded("e2fsck", &["-fn", &device]).ok();
        export.mount("ro");
        bounded("diff", &["-r", tree, &copy]).ok();
        export.umount();
    }
    let stats = export.stats();
    let seen = &stats["snoop"];
    let [commits, logged, remapped] =
        ["commits", "logged", "remapped"].map(|name| seen[name].as_u64().unwrap());
    assert!(commits > 20 && remapped > 500, "{stats}");
    assert!(2 * remapped > logged, "{stats}");
    let pages = stats["layer"]["remapped_pages"].as_u64().unwrap();
    assert!(pages >= remapped, "{stats}");
    export.detach();
    export.down();
}

/// SIGKILL while it writes: after the kernel has recovered its journal from the part, everything
/// confirmed is there.
#[test]
fn a_killed_server_loses_nothing_confirmed() {
    if !can_export(&["mkfs.ext4", "losetup", "e2fsck", "sync"], true) {
        return;
    }
    let mut export = Export::new();
    export.up(&["--snoop"]);
    let device = export.attach();
    bounded("mkfs.ext4", &["-q", "-b", "1024", &device]).ok();
    export.mount("data=journal");
    let mut confirmed = Vec::new();
    let content = |n: u32| -> Vec<u8> { (0..3000 + 997 * n).map(|i| (i / 3 + n) as u8).collect() };
    let server = export.pid();
    for n in 0.. {
        let path = format!("{}/{n}", export.mnt);
        let written = fs::write(&path, content(n))
            .and_then(|()| File::open(&path))
            .and_then(|file| file.sync_all());
        if written.is_err() {
            break;
        }
        confirmed.push(n);
        // From here on everything fails, at the latest once the file system has noticed.
        if n == 40 {
            kill_process(server, Signal::KILL).unwrap();
        }
        assert!(n < 1000, "the server is dead, and files are confirmed");
    }
    assert!(confirmed.len() > 40);
    export.umount();
    export.detach();
    export.up(&["--snoop"]);
    let device = export.attach();
    export.mount("data=journal");
    for n in confirmed {
        let mut found = Vec::new();
        let path = format!("{}/{n}", export.mnt);
        File::open(path).unwrap().read_to_end(&mut found).unwrap();
        assert!(found == content(n), "file {n}");
    }
    // The kernel's recovery wrote home what was in the log, from the copies there.
    let seen = export.stats();
    export.umount();
    bounded("e2fsck", &["-fn", &device]).ok();
    assert!(seen["snoop"]["remapped"].as_u64().unwrap() > 0, "{seen}");
    export.detach();
    export.down();
}

/// A signal unmounts, and then waits for the last user of the file.
#[test]
fn a_signal_waits_for_the_last_user() {
    if !can_export(&[], false) {
        return;
    }
    let export = Export::new();
    export.up(&[]);
    let file = File::options()
        .read(true)
        .write(true)
        .open(export.file())
        .unwrap();
    kill_process(export.pid(), Signal::TERM).unwrap();
    wait_until("the mount is gone", || !Path::new(&export.file()).exists());
    file.write_all_at(b"still here", 5000).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let info = || stetfs(&["nand", "info", &export.nand]);
    wait_until("the part is free", || info().code == 0);
    export.up(&[]);
    let mut found = [0; 10];
    File::open(export.file())
        .unwrap()
        .read_exact_at(&mut found, 5000)
        .unwrap();
    assert_eq!(&found, b"still here");
    let server = export.pid();
    kill_process(server, Signal::INT).unwrap();
    wait_until("the part is free", || info().code == 0);
}

/// A server in the foreground; it ends with the test.
struct Foreground(Child);

impl Drop for Foreground {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

#[test]
fn nbd_clients_read_write_trim_and_zero() {
    if !["qemu-io", "nbdinfo", "nbdcopy"].iter().all(|p| has(p)) {
        return;
    }
    let export = Export::new();
    let socket = export.lab.path("socket");
    let args = ["nand", "export", "--foreground", "--snoop", "--nbd"];
    let serve = || {
        let server = Command::new(STETFS)
            .args(args)
            .args([socket.as_os_str(), export.nand.as_ref()])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("the socket is there", || socket.exists());
        Foreground(server)
    };
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let mut server = serve();
    let info = bounded("nbdinfo", &[&uri]).ok();
    for ability in [
        "can_flush: true",
        "can_trim: true",
        "can_zero: true",
        "can_fua: true",
        "can_multi_conn: true",
        "block_size_minimum: 512",
    ] {
        assert!(info.contains(ability), "{info}");
    }
    let size: u64 = bounded("nbdinfo", &["--size", &uri])
        .ok()
        .trim()
        .parse()
        .unwrap();
    let commands = [
        "write -P 0x5a 1000 70000",
        "read -P 0x5a 1000 70000",
        "discard 8192 8192",
        "read -P 0 8192 8192",
        "write -z 20480 4096",
        "write -f -P 0x33 30000 100",
        "read -P 0 20480 4096",
        "read -P 0x5a 24576 4096",
        "flush",
    ];
    let mut qemu = vec!["-f", "raw", uri.as_str()];
    qemu.extend(commands.iter().flat_map(|command| ["-c", command]));
    let said = bounded("qemu-io", &qemu).ok();
    assert!(
        !said.contains("failed") && !said.contains("error"),
        "{said}"
    );
    // A whole image goes in and out; in between, a signal ends the server.
    let image = export.lab.path("image");
    let content: Vec<u8> = (0..size).map(|i| (i / 512 * 7 + i) as u8).collect();
    fs::write(&image, &content).unwrap();
    let shown = image.to_str().unwrap();
    bounded("nbdcopy", &["--flush", shown, &uri]).ok();
    kill_process(Pid::from_child(&server.0), Signal::TERM).unwrap();
    assert!(server.0.wait().unwrap().success());
    assert!(!socket.exists());
    let _server = serve();
    let back = export.lab.path("back");
    bounded("nbdcopy", &[&uri, back.to_str().unwrap()]).ok();
    assert!(fs::read(back).unwrap() == content);
}

#[test]
fn what_cannot_be_exported_says_why() {
    let lab = Lab::new();
    let nand = lab.str("flash.nand");
    stetfs(&["nand", "create", &nand, "--size", "4M"]).ok();
    stetfs(&["nand", "export", &nand]).fails(2, &["DIR"]);
    stetfs(&["nand", "export", &nand, &lab.str("none")]).fails(1, &["no such directory"]);
    stetfs(&["nand", "export", &lab.str("no.nand"), &lab.str(".")]).fails(1, &["no.nand"]);
    stetfs(&["nand", "export", "--nbd", &nand, &nand]).fails(1, &["a file exists there"]);
}
