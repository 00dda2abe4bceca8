//! Processes that run beside a program, while it is recorded and while its states are judged, do
//! not count: a stranger's sync makes nothing durable, and a stranger's change is refused.
//! Everything that the program has started counts, wherever it runs.

use std::fs;
use std::process::{Child, Command, Stdio};

use rustix::process::geteuid;

use crate::program::Trial;
use crate::run::{Ran, has, stetfs, wait_until};

/// A program that waits for a stranger between a change and a promise; both are in one directory.
struct Beside {
    trial: Trial,
    dir: String,
}

impl Beside {
    fn new() -> Option<Self> {
        let trial = Trial::new()?;
        let dir = trial.lab.str("mnt");
        fs::create_dir(&dir).unwrap();
        Some(Self { trial, dir })
    }

    /// Starts a stranger that waits for the program, does this in its directory, and says so.
    fn stranger(&self, does: &str) -> Child {
        let (go, done) = (self.trial.lab.str("go"), self.trial.lab.str("done"));
        let script = format!(
            "while ! test -e {go}; do sleep 0.02; done; cd {}; {does}\ncd /; touch {done}",
            self.dir
        );
        Command::new("sh")
            .args(["-c", &script])
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Runs the program: it changes something, waits for the stranger, and promises.
    fn run(&self, options: &[&str], changes: &str, check: &str) -> Ran {
        let (go, done) = (self.trial.lab.str("go"), self.trial.lab.str("done"));
        let program = format!(
            "cd {}; {changes}\ntouch {go}; while ! test -e {done}; do sleep 0.02; done\n\
             echo x > $STETFS_MARKS\n",
            self.dir
        );
        let program = self.trial.file("program.sh", &program);
        let keep = self.trial.lab.str("kept");
        let always = [
            "crash", "--dir", &self.dir, "--keep", &keep, "--check", check,
        ];
        let ran = stetfs(&[&always[..], options, &["--", "sh", &program]].concat());
        self.trial.nothing_is_left();
        for file in [go, done] {
            let _ = fs::remove_file(file);
        }
        ran
    }

    fn recording(&self) -> String {
        fs::read_to_string(self.trial.lab.str("kept")).unwrap()
    }
}

/// The promise needs the file.
const KEPT: &str = "test \"$(cat {dir}/f)\" = a || ! grep -q x $STETFS_MARKS_FILE";

/// Another process's sync(2) of the machine once hid a missing fsync.
#[test]
fn a_strangers_sync_makes_nothing_durable() {
    let Some(beside) = Beside::new() else { return };
    let mut stranger = beside.stranger("sync; sync f; sync -d f; sync .");
    let ran = beside.run(&[], "echo a > f", KEPT);
    stranger.wait().unwrap();
    assert_eq!(ran.code, 1, "{ran:#?}");
    assert!(
        ran.out.contains("what would help: fsync of f after call"),
        "{ran:#?}"
    );
    let recording = beside.recording();
    assert!(
        !recording.contains("Sync") && !recording.contains("Fsync"),
        "{recording}"
    );
    if geteuid().is_root() {
        assert!(
            ran.err.contains("did not start the process: sync["),
            "{ran:#?}"
        );
    }
}

/// A file manager, an indexer and an editor: none gets into a recording, nor into a state.
#[test]
fn a_stranger_changes_nothing() {
    let Some(beside) = Beside::new() else { return };
    if !geteuid().is_root() {
        eprintln!("SKIPPED: nobody else enters an ordinary user's mount");
        return;
    }
    let said = beside.trial.lab.str("said");
    let does = format!(
        "{{ cat f g; touch f; touch new; echo b > f; echo b >> f; rm f; mv f e; ln f l; ln -s f s; \
         mkdir d; chmod 600 f; chown 1 f; mkfifo p; truncate -s 0 f; exec 3<f; }} > {said} 2>&1"
    );
    let mut stranger = beside.stranger(&does);
    let ran = beside.run(
        &[],
        "umask 22; echo a > f; mkdir g; exec 4>>f; echo a >> f",
        "true",
    );
    stranger.wait().unwrap();
    assert_eq!(ran.code, 0, "{ran:#?}");
    let said = fs::read_to_string(said).unwrap();
    assert_eq!(said.matches("Read-only file system").count(), 13, "{said}");
    assert!(said.starts_with("a\na\n"), "{said}");
    let recording = beside.recording();
    for call in ["Rename", "Remove", "Link", "Set", "Resize"] {
        assert!(
            !recording.contains(&format!("\"{call}\":")),
            "{call}: {recording}"
        );
    }
    // A file that somebody has read and closed is still open for writing.
    assert_eq!(recording.matches("\"Close\"").count(), 3, "{recording}");
    assert!(ran.err.contains("mkdir["), "{ran:#?}");

    // With --others, the same change counts.
    let mut stranger = beside.stranger("touch new; sync f");
    let ran = beside.run(&["--others"], "echo a > f", KEPT);
    stranger.wait().unwrap();
    assert_eq!(ran.code, 0, "{ran:#?}");
    assert!(beside.recording().contains("Fsync"));
}

/// Daemons, processes in other namespaces and of other users are the program's. So is a write
/// through a mapping, which comes from no process.
#[test]
fn what_the_program_has_started_counts_wherever_it_is() {
    let Some(beside) = Beside::new() else { return };
    if !geteuid().is_root() || !has("python3") || !has("unshare") || !has("setpriv") {
        eprintln!("SKIPPED: other users and namespaces take root");
        return;
    }
    let daemon = "echo a > f; (env -i setsid sh -c 'sleep 0.1; sync f .; sync; echo > out' &); \
        while ! test -e out; do sleep 0.02; done";
    let namespace = "unshare --pid --fork sh -c 'echo a > f; (setsid sync f . &); sleep 0.2; sync'";
    let user = "chmod 777 .; setpriv --reuid=65534 --regid=65534 --clear-groups \
        sh -c 'echo a > f; sync f; sync .'";
    let thread = beside.trial.file(
        "thread.py",
        "import os, threading\n\
         def work():\n    open('f', 'w').write('a\\n')\n    os.sync()\n\
         t = threading.Thread(target=work)\nt.start()\nt.join()\n",
    );
    let mapping = beside.trial.file(
        "mapping.py",
        "import mmap, os\n\
         f = open('f', 'w+b')\nf.truncate(2)\nm = mmap.mmap(f.fileno(), 2)\nm[:] = b'a\\n'\n\
         os.sync()\n",
    );
    let hears = [format!("python3 {thread}"), format!("python3 {mapping}")];
    for program in [daemon, namespace, user]
        .into_iter()
        .chain(hears.iter().map(String::as_str))
    {
        let mut stranger = beside.stranger("true");
        let ran = beside.run(&["--model", "posix,ext4-ordered"], program, KEPT);
        stranger.wait().unwrap();
        if ran.err.contains("do not reach the recording") {
            eprintln!("SKIPPED: this kernel tells the mount of no sync(2)");
            return;
        }
        assert_eq!(ran.code, 0, "{program}: {ran:#?}");
        assert!(!ran.err.contains("not counted"), "{program}: {ran:#?}");
    }
    // Without its sync, the mapped data comes last, and is not lost.
    let text = fs::read_to_string(&mapping)
        .unwrap()
        .replace("os.sync()", "os._exit(0)");
    fs::write(&mapping, text).unwrap();
    let mut stranger = beside.stranger("exec 3<. ; sleep 1 &");
    let whole = "test \"$(cat {dir}/f)\" = a || ! test -s $STETFS_MARKS_FILE || exit 0";
    let ran = beside.run(&[], &hears[1], whole);
    stranger.wait().unwrap();
    assert_eq!(ran.code, 0, "{ran:#?}");
    let recording = beside.recording();
    assert!(recording.contains("\"bytes\":\"610a\""), "{recording}");
}

/// A state is what the power cut left, whoever looks at it.
#[test]
fn a_stranger_changes_no_state_that_is_judged() {
    let Some(beside) = Beside::new() else { return };
    if !geteuid().is_root() {
        eprintln!("SKIPPED: nobody else enters an ordinary user's mount");
        return;
    }
    let (said, stop) = (beside.trial.lab.str("said"), beside.trial.lab.str("stop"));
    let script = format!(
        "while ! test -e {stop}; do touch {dir}/intruder 2>> {said}; sleep 0.01; done",
        dir = beside.dir
    );
    let mut stranger = Command::new("sh").args(["-c", &script]).spawn().unwrap();
    let check = format!("sleep 0.1; test ! -e {}/intruder", beside.dir);
    let begun =
        || fs::metadata(&said).is_ok() || fs::exists(format!("{}/intruder", beside.dir)).unwrap();
    wait_until("the stranger is at work", begun);
    let _ = fs::remove_file(format!("{}/intruder", beside.dir));
    let (go, done) = (beside.trial.lab.str("go"), beside.trial.lab.str("done"));
    fs::write(&done, "").unwrap();
    let ran = beside.run(&[], "echo a > f", &check);
    fs::write(stop, "").unwrap();
    stranger.wait().unwrap();
    assert!(!fs::exists(go).unwrap());
    assert_eq!(ran.code, 0, "{ran:#?}");
    let said = fs::read_to_string(said).unwrap();
    assert!(said.contains("Read-only file system"), "{said}");
}
