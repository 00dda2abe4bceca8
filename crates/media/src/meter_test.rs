//! The account: what is counted, added up, and written as JSON.

use crate::meter::*;
use crate::tag::{Cause, Class, Tag};

const LOG: Tag = Tag::new(Class::Journal, Cause::Log);
const HOME: Tag = Tag::new(Class::Data, Cause::Home);

#[test]
fn counts_from_several_threads_add_up() {
    let meter = Meter::new();
    std::thread::scope(|scope| {
        for _ in 0..5 {
            scope.spawn(|| {
                for _ in 0..1000 {
                    meter.count_write(LOG, 4096);
                    meter.count_read(HOME, 512);
                    meter.count_flush(Cause::Log);
                }
                meter.count_durable_write(LOG, 512);
                meter.count_discard(8192, 0);
            });
        }
    });
    let s = meter.snapshot();
    assert_eq!(
        s.of(LOG),
        Traffic {
            writes: 5005,
            write_bytes: 5000 * 4096 + 5 * 512,
            ..Traffic::default()
        }
    );
    assert_eq!(
        s.by_class(Class::Data),
        Traffic {
            reads: 5000,
            read_bytes: 5000 * 512,
            ..Traffic::default()
        }
    );
    assert_eq!(
        (
            s.total_flushes(),
            s.flushes(Cause::Log),
            s.flushes(Cause::Home)
        ),
        (5000, 5000, 0)
    );
    assert_eq!(
        (s.total_durable_writes(), s.durable_writes(Cause::Log)),
        (5, 5)
    );
    assert_eq!((s.discards(), s.discard_bytes()), (5, 5 * 8192));
    assert_eq!(s.total().reads + s.total().writes, 10_005);
}

#[test]
fn differences_show_what_happened_in_between() {
    let meter = Meter::new();
    meter.count_write(LOG, 4096);
    let before = meter.snapshot();
    meter.count_write(HOME, 1024);
    meter.count_flush(Cause::Home);
    let between = meter.snapshot() - &before;
    assert_eq!(
        between.iter().collect::<Vec<_>>(),
        [(
            HOME,
            Traffic {
                writes: 1,
                write_bytes: 1024,
                ..Traffic::default()
            }
        )]
    );
    assert_eq!(between.by_cause(Cause::Log), Traffic::default());
    assert_eq!(between.clone() + &before, meter.snapshot());
}

#[test]
fn json_has_only_what_is_not_zero_and_reads_back() {
    let meter = Meter::new();
    meter.count_write(LOG, 4096);
    meter.count_durable_write(Tag::new(Class::Journal, Cause::CommitRecord), 4096);
    meter.count_flush(Cause::Log);
    let snapshot = meter.snapshot();
    let json = serde_json::to_string(&snapshot).expect("plain numbers");
    assert_eq!(
        json,
        concat!(
            r#"{"traffic":[{"class":"journal","cause":"log","reads":0,"read_bytes":0,"#,
            r#""writes":1,"write_bytes":4096},"#,
            r#"{"class":"journal","cause":"commit_record","reads":0,"read_bytes":0,"#,
            r#""writes":1,"write_bytes":4096}],"#,
            r#""flushes":[{"cause":"log","flushes":1,"durable_writes":0},"#,
            r#"{"cause":"commit_record","flushes":0,"durable_writes":1}],"#,
            r#""discards":0,"discard_bytes":0}"#
        )
    );
    assert_eq!(
        serde_json::from_str::<MeterSnapshot>(&json).expect("our own JSON"),
        snapshot
    );
}

/// JSON names lines, fences, erases and time only if there are any; a snapshot written before these
/// were counted reads as zero.
#[test]
fn json_names_lines_fences_erases_and_time_where_there_are_any() {
    let meter = Meter::new();
    let entry = Tag::new(Class::Journal, Cause::CommitRecord);
    meter.count_write(entry, 16);
    meter.count_lines(entry, 2);
    meter.count_busy(entry, 360);
    meter.count_fence(Cause::CommitRecord);
    meter.count_cause_busy(Cause::CommitRecord, 40);
    meter.count_erase(Cause::Gc);
    meter.count_discard(512, 7);
    let snapshot = meter.snapshot();
    let json = serde_json::to_string(&snapshot).expect("plain numbers");
    assert_eq!(
        json,
        concat!(
            r#"{"traffic":[{"class":"journal","cause":"commit_record","reads":0,"read_bytes":0,"#,
            r#""writes":1,"write_bytes":16,"lines":2,"busy_ns":360}],"#,
            r#""flushes":[{"cause":"commit_record","flushes":0,"durable_writes":0,"fences":1,"#,
            r#""busy_ns":40},"#,
            r#"{"cause":"gc","flushes":0,"durable_writes":0,"erases":1}],"#,
            r#""discards":1,"discard_bytes":512,"discard_busy_ns":7}"#
        )
    );
    assert_eq!(
        serde_json::from_str::<MeterSnapshot>(&json).expect("our own JSON"),
        snapshot
    );
    assert_eq!((snapshot.total_fences(), snapshot.total_erases()), (1, 1));
    assert_eq!(
        (snapshot.fences(Cause::Gc), snapshot.erases(Cause::Gc)),
        (0, 1)
    );
    assert_eq!(
        (
            snapshot.busy_ns(Cause::CommitRecord),
            snapshot.busy_ns(Cause::Gc),
            snapshot.total_busy_ns()
        ),
        (400, 0, 407)
    );
}
