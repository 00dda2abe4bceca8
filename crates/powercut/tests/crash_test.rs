//! `CrashTest`, as tests in Rust use it: saving settings rightly and wrongly.

use std::fs::{self, File};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use stetfs_powercut::testing::{CrashTest, Promises};
use stetfs_testkit::host::needs;
use stetfs_testkit::skip_unless;

/// How the settings are saved.
#[derive(Clone, Copy, PartialEq)]
enum How {
    InPlace,
    WithoutSync,
    Rightly,
}

fn save(dir: &Path, promises: &Promises, how: How) {
    let (path, other) = (dir.join("settings"), dir.join("settings.new"));
    let mut file = File::create(if how == How::InPlace { &path } else { &other }).unwrap();
    file.write_all(b"blue").unwrap();
    if how == How::Rightly {
        file.sync_all().unwrap();
    }
    if how != How::InPlace {
        fs::rename(other, path).unwrap();
    }
    if how == How::Rightly {
        File::open(dir).unwrap().sync_all().unwrap();
        promises.make("saved");
    }
}

fn green(dir: &Path) {
    fs::write(dir.join("settings"), "green").unwrap();
}

fn test(how: How) -> CrashTest<'static> {
    CrashTest::new(move |dir, promises| save(dir, promises, how))
        .setup(green)
        .model("ext4-ordered")
        .model("posix")
}

fn checked(how: How) -> CrashTest<'static> {
    test(how).check(|dir, promised| {
        let colour = fs::read_to_string(dir.join("settings")).unwrap();
        assert!(
            colour == "blue" || colour == "green" && promised.is_empty(),
            "the colour is {colour:?}"
        );
    })
}

/// Runs a test that must fail, and returns its message.
fn failed(test: CrashTest<'_>) -> String {
    let failed = catch_unwind(AssertUnwindSafe(|| test.run())).expect_err("it must fail");
    let message = *failed.downcast::<String>().expect("a message");
    // The recording that a failure keeps.
    if let Some((_, kept)) = message.split_once("--replay '")
        && let Some((kept, _)) = kept.split_once('#')
    {
        fs::remove_file(kept).expect("a recording");
    }
    message
}

#[test]
fn what_is_saved_rightly_survives() {
    skip_unless!(needs(false, true, &[]));
    checked(How::Rightly).run();
}

#[test]
fn so_it_does_where_what_is_read_judges() {
    skip_unless!(needs(false, true, &[]));
    test(How::Rightly)
        .read(|dir| fs::read_to_string(dir.join("settings")).unwrap())
        .run();
}

#[test]
fn and_where_files_do() {
    skip_unless!(needs(false, true, &[]));
    test(How::Rightly).run();
}

#[test]
fn a_missing_fsync_is_found() {
    skip_unless!(needs(false, true, &[]));
    let message = failed(checked(How::WithoutSync));
    for text in [
        "what would help: fsync of settings.new",
        "the colour is \"\"",
        "stetfs crash --replay",
    ] {
        assert!(message.contains(text), "no {text:?} in {message}");
    }
}

#[test]
fn so_is_one_that_only_reading_shows() {
    skip_unless!(needs(false, true, &[]));
    let read = |dir: &Path| fs::read_to_string(dir.join("settings")).unwrap();
    let message = failed(test(How::WithoutSync).read(read));
    assert!(message.contains("no moment of the run"), "{message}");
}

#[test]
fn saving_in_place_is_found_by_a_check() {
    skip_unless!(needs(false, true, &[]));
    let message = failed(checked(How::InPlace));
    assert!(message.contains("no fsync would help"), "{message}");
}

/// Killing the program would leave an empty file too, and with this model there is nothing between
/// that and the whole one. A test may have several runs.
#[test]
fn and_not_without_one() {
    skip_unless!(needs(false, true, &[]));
    test(How::Rightly).run();
    CrashTest::new(|dir, promises| save(dir, promises, How::InPlace))
        .setup(green)
        .model("ext4-dioread-lock")
        .run();
}

#[test]
fn code_and_checks_that_fail_are_told() {
    skip_unless!(needs(false, true, &[]));
    let broken = CrashTest::new(|_, _| panic!("out of colours"));
    let message = failed(broken);
    assert!(message.contains("out of colours"), "{message}");
}

#[test]
fn a_check_must_hold_without_a_cut() {
    skip_unless!(needs(false, true, &[]));
    let message = failed(test(How::Rightly).check(|_, _| panic!("never")));
    assert!(message.contains("without any power cut"), "{message}");
}
