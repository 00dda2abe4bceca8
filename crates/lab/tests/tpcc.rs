//! TPC-C on SQLite through the library: data and transactions are as the specification says, errors
//! are found, equal seeds give equal runs, and the volume is sound afterwards.

use stetfs_lab::experiment::find;
use stetfs_lab::experiment::report::Report;
use stetfs_lab::experiment::setting::Setting;
use stetfs_lab::system::{
    self, Bed, DJ_JOURNAL, DJ_ORDERED, EXT3, EXT3_4K, EXT4_ORDERED, Medium, Nvram, PCM, Volume,
    changes_of,
};
use stetfs_lab::workload::sqlite::{Database, JournalMode};
use stetfs_lab::workload::tpcc::{Cardinality, FILE, Outcome, Tpcc, check::check_consistency};
use stetfs_lab::workload::{Durable, Session, Workload};
use stetfs_media::{Class, Image, MeterSnapshot};
use stetfs_testkit::host::{needs, scratch};
use stetfs_testkit::image::{EXT4_4K, check};
use stetfs_testkit::skip_unless;

const SMALL: Cardinality = Cardinality {
    warehouses: 2,
    items: 200,
    customers: 40,
    orders: 40,
};

const RUN: Tpcc = Tpcc {
    size: SMALL,
    decks: 5,
    journal: JournalMode::Delete,
    page_bytes: 4096,
    seed: 3,
};

fn bed() -> Bed {
    let volume = Volume::make(EXT3_4K, 64, 8).expect("a volume");
    Bed::new(EXT3, PCM, &volume, 64).expect("a bed")
}

fn session(bed: &Bed) -> Session<'_> {
    Session::new(bed.fs(), bed.time(), Durable::EXT3, &|_, _| {})
}

fn loaded(run: &Tpcc) -> Bed {
    let bed = bed();
    run.load(&mut session(&bed)).expect("loading");
    bed
}

fn value(db: &Database, sql: &str) -> i64 {
    db.value(sql).expect("a value")
}

/// Clause 4.3.3.1, and 1.2.1 for the numbers of rows; items and customers are fewer here.
#[test]
fn the_load_is_the_specifications() {
    let bed = loaded(&RUN);
    let session = session(&bed);
    let db = Database::open(&session, FILE, JournalMode::Delete, 1).expect("a database");
    let (w, items, customers) = (2, 200, 40);
    for (table, rows) in [
        ("warehouse", w),
        ("district", 10 * w),
        ("customer", 10 * w * customers),
        ("history", 10 * w * customers),
        ("orders", 10 * w * customers),
        ("new_order", 10 * w * customers * 3 / 10),
        ("item", items),
        ("stock", items * w),
    ] {
        assert_eq!(
            value(&db, &format!("SELECT count(*) FROM {table}")),
            rows,
            "{table}"
        );
    }
    let none = [
        "SELECT count(*) FROM orders WHERE o_ol_cnt NOT BETWEEN 5 AND 15",
        "SELECT count(*) FROM orders WHERE (o_id <= 28) <> (o_carrier_id IS NOT NULL)",
        "SELECT count(*) FROM order_line WHERE (ol_o_id <= 28) <> (ol_amount = 0 AND ol_delivery_d \
            IS NOT NULL)",
        "SELECT count(*) FROM customer WHERE c_balance <> -1000 OR length(c_data) NOT BETWEEN 300 \
            AND 500",
        "SELECT count(*) FROM stock WHERE s_quantity NOT BETWEEN 10 AND 100 OR length(s_dist_07) \
            <> 24",
        "SELECT count(*) FROM (SELECT o_c_id FROM orders GROUP BY o_w_id, o_d_id, o_c_id HAVING \
            count(*) <> 1)",
    ];
    for sql in none {
        assert_eq!(value(&db, sql), 0, "{sql}");
    }
    assert_eq!(Cardinality::scaled(1.0), Cardinality::of(1));
    assert_eq!(
        (
            Cardinality::of(1).items,
            Cardinality::of(1).customers,
            Cardinality::of(1).orders
        ),
        (100_000, 3_000, 3_000)
    );
}

/// Clauses 2.4.1, 2.5.1 and 5.2.4, within four times the deviation.
#[test]
fn transactions_come_as_the_specification_says() {
    let run = Tpcc {
        decks: 100,
        journal: JournalMode::Wal,
        ..RUN
    };
    let bed = loaded(&run);
    let mut session = session(&bed);
    let done = run.play(&mut session).expect("playing");
    run.check(&mut session).expect("consistent");
    let decks = (
        done.new_orders,
        done.payments,
        done.order_statuses,
        done.deliveries,
        done.stock_levels,
    );
    assert_eq!(decks, (1000, 1000, 100, 100, 100));
    assert_eq!(
        (run.transactions(), run.tpm_c(120_000_000_000)),
        (2300, 500.0)
    );
    let near = |what: &str, found: u64, of: u64, share: f64| {
        let mean = of as f64 * share;
        let deviation = (mean * (1.0 - share)).sqrt();
        assert!(
            (found as f64 - mean).abs() < 4.0 * deviation,
            "{what}: {found} of {of}"
        );
    };
    near("rolled back", done.rolled_back, 1000, 0.01);
    near("remote lines", done.remote_lines, 10_000, 0.01);
    near("remote payments", done.remote_payments, 1000, 0.15);
    near("by last name", done.by_name[0], done.by_name[1], 0.6);
    assert_eq!(done.by_name[1], 1100);
    let db = Database::open(&session, FILE, run.journal, 1).expect("a database");
    // 800 orders were there before, and rolled back orders are not.
    let orders = value(&db, "SELECT count(*) FROM orders");
    assert_eq!(orders as u64, 800 + 1000 - done.rolled_back);
    let delivered = value(&db, "SELECT sum(c_delivery_cnt) FROM customer");
    let waiting = value(&db, "SELECT count(*) FROM new_order");
    assert_eq!(
        waiting as u64,
        240 + 1000 - done.rolled_back - delivered as u64
    );
    // With a single warehouse there are no others.
    let alone = Tpcc {
        size: Cardinality {
            warehouses: 1,
            ..SMALL
        },
        ..RUN
    };
    drop(db);
    let bed = loaded(&alone);
    let done = alone.play(&mut self::session(&bed)).expect("playing");
    assert_eq!((done.remote_lines, done.remote_payments), (0, 0));
}

/// Half a transaction of each kind breaks the condition of its number, and none before it.
#[test]
fn half_a_transaction_is_found() {
    let halves = [
        "UPDATE warehouse SET w_ytd = w_ytd + 100 WHERE w_id = 2",
        "UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = 1 AND d_id = 7",
        "DELETE FROM new_order WHERE no_w_id = 1 AND no_d_id = 3 AND no_o_id = 35",
        "DELETE FROM order_line WHERE ol_w_id = 2 AND ol_d_id = 10 AND ol_o_id = 5 AND ol_number = \
            1",
    ];
    let bed = loaded(&RUN);
    let session = session(&bed);
    let db = Database::open(&session, FILE, JournalMode::Delete, 1).expect("a database");
    for (n, half) in halves.iter().enumerate() {
        check_consistency(db.connection()).expect("consistent");
        db.connection()
            .execute_batch("BEGIN")
            .expect("a transaction");
        let changed = db.connection().execute(half, []).expect("a change");
        assert_eq!(changed, 1, "{half}");
        let error = check_consistency(db.connection()).expect_err("it is found");
        let condition = format!("condition {} does not hold for 1 of them", n + 1);
        assert!(error.to_string().contains(&condition), "{error}");
        db.connection().execute_batch("ROLLBACK").expect("undone");
    }
}

/// A run's result, and what it left.
struct Ran {
    outcome: Outcome,
    passed_ns: u64,
    traffic: MeterSnapshot,
    database: Vec<u8>,
    image: Image,
}

fn run_and_judge(run: &Tpcc) -> Ran {
    let mut bed = loaded(run);
    bed.remount().expect("a mount");
    let (time, before) = (bed.time(), bed.dev().meter().snapshot());
    let before_ns = time.now_ns();
    let mut session = session(&bed);
    run.warm(&mut session).expect("warm");
    let outcome = run.play(&mut session).expect("playing");
    let passed_ns = time.now_ns() - before_ns;
    let traffic = bed.dev().meter().snapshot() - &before;
    bed.remount().expect("a mount");
    let mut session = self::session(&bed);
    run.check(&mut session).expect("consistent");
    let root = session.root();
    let ino = session.open(root, FILE).expect("the database");
    let mut database = vec![0; 16 << 20];
    let len = session.read(ino, 0, &mut database).expect("its content");
    database.truncate(len);
    bed.fs().unmount().expect("an unmount");
    Ran {
        outcome,
        passed_ns,
        traffic,
        database,
        image: bed.image().expect("an image"),
    }
}

#[test]
fn every_journal_mode_leaves_a_whole_volume() {
    skip_unless!(needs(false, false, &["e2fsck"]));
    for (journal, page_bytes) in [
        (JournalMode::Delete, 1024),
        (JournalMode::Group, 1024),
        (JournalMode::Truncate, 4096),
        (JournalMode::Wal, 4096),
    ] {
        let ran = run_and_judge(&Tpcc {
            journal,
            page_bytes,
            ..RUN
        });
        let dir = scratch().expect("a directory");
        let path = dir.path().join("image");
        ran.image.to_file(&path).expect("a file");
        check(&path).unwrap_or_else(|e| panic!("{journal:?}: {e:#}"));
    }
}

#[test]
fn equal_seeds_give_equal_runs() {
    for journal in [JournalMode::Delete, JournalMode::Group, JournalMode::Wal] {
        let run = Tpcc { journal, ..RUN };
        let (first, second) = (run_and_judge(&run), run_and_judge(&run));
        assert_eq!(first.outcome, second.outcome);
        assert_eq!(
            (first.passed_ns, first.traffic),
            (second.passed_ns, second.traffic)
        );
        assert!(first.database == second.database, "the databases differ");
        let other = run_and_judge(&Tpcc { seed: 4, ..run });
        assert_ne!(first.outcome, other.outcome);
        assert!(first.database != other.database);
    }
}

/// TPC-C whose last transaction is done only by half.
struct Half(Tpcc);

impl Workload for Half {
    fn name(&self) -> String {
        self.0.name()
    }

    fn prepare(&self, session: &mut Session<'_>) -> anyhow::Result<()> {
        self.0.prepare(session)
    }

    fn run(&self, session: &mut Session<'_>) -> anyhow::Result<()> {
        self.0.run(session)?;
        let db = Database::open(session, FILE, self.0.journal, 1)?;
        let half = "UPDATE district SET d_ytd = d_ytd + 1 WHERE d_w_id = 1 AND d_id = 1";
        db.connection().execute(half, [])?;
        db.close(session)
    }

    fn is_judged(&self) -> bool {
        self.0.is_judged()
    }

    fn judge(&self, session: &mut Session<'_>) -> anyhow::Result<()> {
        self.0.judge(session)
    }
}

#[test]
fn a_wrong_run_is_no_measurement() {
    let volume = Volume::make(EXT3_4K, 64, 8).expect("a volume");
    let measure = |work: &dyn Workload| {
        let bed = Bed::new(EXT3, PCM, &volume, 64).expect("a bed");
        bed.measure(work, Durable::EXT3, &|_, _| {})
    };
    let run = Tpcc { decks: 1, ..RUN };
    measure(&run).expect("a measurement");
    let error = format!("{:#}", measure(&Half(run)).expect_err("it is wrong"));
    assert!(error.contains("condition 1 does not hold for 1"), "{error}");
}

/// Delta Journaling writes no journal block to the device in ordered mode. In journal mode it
/// writes those blocks whole that its descriptors name.
#[test]
fn what_descriptors_say_is_what_the_device_gets() {
    let volume = Volume::make(EXT4_4K, 64, 8).expect("a volume");
    let card = Medium::card(Nvram {
        bytes: 1 << 20,
        ..Nvram::NONE
    });
    let measure = |system| {
        let bed = Bed::new(system, card, &volume, 64).expect("a bed");
        bed.run(&RUN, Durable::EXT3, &|_, _| {})
            .expect("an outcome")
    };
    let of = |outcome: &system::Outcome, name: &str| outcome.get(name).unwrap_or(-1.0);
    let blocks = |outcome: &system::Outcome| of(outcome, "logged") / 4096.0;
    let ordered = measure(DJ_ORDERED);
    assert_eq!((blocks(&ordered), of(&ordered, "wholes")), (0.0, 0.0));
    assert!((1.0..200.0).contains(&of(&ordered, "delta")), "{ordered:?}");
    let journal = measure(DJ_JOURNAL);
    assert_eq!(blocks(&journal), of(&journal, "wholes"));
    let commits = of(&journal, "commits");
    assert!(
        of(&journal, "deltas") > commits && blocks(&journal) > commits,
        "{journal:?}"
    );
    let ext4 = measure(EXT4_ORDERED);
    assert!(ext4.get("deltas").is_none() && blocks(&ext4) > 0.0);
}

/// Overwrites some bytes of blocks, and adds blocks.
struct Patch;

impl Workload for Patch {
    fn name(&self) -> String {
        "patches".to_owned()
    }

    fn prepare(&self, session: &mut Session<'_>) -> anyhow::Result<()> {
        let root = session.root();
        let ino = session.create(root, "patched")?;
        session.write(ino, 0, &[7; 8 * 4096])?;
        session.close(ino)
    }

    fn run(&self, session: &mut Session<'_>) -> anyhow::Result<()> {
        let root = session.root();
        let ino = session.open(root, "patched")?;
        session.write(ino, 0, &[7; 4096])?;
        session.write(ino, 4096 + 100, &[8; 10])?;
        session.write(ino, 2 * 4096, &[9; 1000])?;
        session.sync()?;
        session.write(ino, 3 * 4096, &[1; 4096])?;
        session.append(ino, &[2; 3 * 4096])?;
        session.sync()?;
        session.close(ino)?;
        // Freed blocks that another file gets are new again.
        session.remove(root, "patched")?;
        session.sync()?;
        let ino = session.create(root, "another")?;
        session.write(ino, 0, &[3; 11 * 4096])?;
        session.sync()?;
        session.close(ino)
    }
}

#[test]
fn changes_are_those_of_overwritten_blocks() {
    for variety in [EXT4_4K, EXT3_4K] {
        let volume = Volume::make(variety, 64, 8).expect("a volume");
        let changes = changes_of(&volume, 64, &Patch, &|_, _| {}).expect("changes");
        let data = |class| class == Class::Data;
        let counts = &changes.updates[&Class::Data];
        assert_eq!((counts[10], counts[1000], counts[4096]), (1, 1, 1));
        assert_eq!((counts[0], changes.updated(data)), (1, 4));
        assert_eq!((changes.below(data, 10), changes.below(data, 1001)), (1, 3));
        // The appended blocks, and the other file.
        assert_eq!(changes.new_blocks, 3 + 11);
        assert_eq!(changes.transactions, 4);
        assert!(changes.updates[&Class::InodeTable].iter().sum::<u64>() >= 3);
    }
}

fn experiment(id: &str) -> Report {
    let setting = Setting {
        scale: 1.0 / 64.0,
        is_alone: true,
        ..Setting::default()
    };
    let experiment = find(id).expect("an experiment");
    experiment.run(&setting).expect("a report")
}

/// Claims that do not depend on the size of the database hold in a small one too.
#[test]
fn the_papers_claims_are_checked() {
    let fig1 = experiment("dj-fig1");
    assert_eq!(fig1.checks.len(), 4);
    for series in &fig1.charts[0].series {
        let shares: Vec<f64> = series.values.iter().flatten().copied().collect();
        assert!(shares.is_sorted() && shares[13] <= 100.0, "{shares:?}");
    }
}
