//! The watchdog of an export: a device that never answers does not keep its users waiting for ever.

mod support;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use stetfs_export::ByteDev;
use stetfs_fuse::{ExportOptions, FILE_NAME, SessionError, check_dir, export, mountinfo};
use stetfs_media::{BlockDev, Cause, Layer, MediaError, RamDev};

/// A device whose flush waits until the test lets it go.
struct Stuck {
    below: RamDev,
    gate: Arc<(Mutex<bool>, Condvar)>,
}

impl Layer for Stuck {
    fn below(&self) -> &dyn BlockDev {
        &self.below
    }

    /// Without a cache, nobody asks for a flush.
    fn volatile_cache(&self) -> bool {
        true
    }

    fn flush(&self, _cause: Cause) -> Result<(), MediaError> {
        let (open, changed) = &*self.gate;
        let mut is_open = open.lock().unwrap();
        while !*is_open {
            is_open = changed.wait(is_open).unwrap();
        }
        Ok(())
    }
}

#[test]
fn a_stuck_request_is_given_up() {
    need!(support::root_and_fuse());
    let gate = Arc::<(Mutex<bool>, Condvar)>::default();
    let dev = Arc::new(ByteDev::new(Arc::new(Stuck {
        below: RamDev::new(1 << 20),
        gate: gate.clone(),
    })));
    let scratch = tempfile::tempdir().unwrap();
    let dir = check_dir(scratch.path()).unwrap();
    let (up, is_up) = mpsc::channel();
    let server = {
        let dir = dir.clone();
        thread::spawn(move || {
            let options = ExportOptions {
                watchdog: Some(Duration::from_millis(300)),
                stats: Box::new(|| serde_json::json!({})),
                threads: 1,
                until_closed: false,
                let_go: None,
            };
            export(dev, Path::new("stuck"), &dir, options, || {
                up.send(()).map_err(std::io::Error::other)?;
                Ok(stetfs_fuse::background::Waiting::nobody())
            })
        })
    };
    is_up.recv().unwrap();
    let file = File::options()
        .read(true)
        .write(true)
        .open(dir.join(FILE_NAME))
        .unwrap();
    file.write_all_at(b"answered", 0).unwrap();
    // Only the watchdog ends this.
    file.sync_all().unwrap_err();
    file.read_at(&mut [0; 8], 0).unwrap_err();
    let ended = server.join().unwrap();
    assert!(matches!(ended, Err(SessionError::Stuck(_))), "{ended:?}");
    drop(file);
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
    assert_eq!(mountinfo::mounted_on(&dir).unwrap(), None);
}
