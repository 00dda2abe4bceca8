//! TPC-C's consistency conditions 1 to 4 (clause 3.3.2), after a run.

use anyhow::{Result, ensure};
use rusqlite::Connection;

/// A condition: its number, what it says, and a query that counts the rows that break it.
const CONDITIONS: [(u32, &str, &str); 4] = [
    (
        1,
        "W_YTD is the sum of its districts' D_YTD",
        "SELECT count(*) FROM warehouse
         WHERE w_ytd IS NOT (SELECT sum(d_ytd) FROM district WHERE d_w_id = w_id)",
    ),
    (
        2,
        "D_NEXT_O_ID - 1 is the largest O_ID, and the largest NO_O_ID if there is any",
        "SELECT count(*) FROM district
         WHERE d_next_o_id - 1 IS NOT (SELECT max(o_id) FROM orders WHERE o_w_id = d_w_id AND \
         o_d_id = d_id)
            OR d_next_o_id - 1 <> (SELECT max(no_o_id) FROM new_order WHERE no_w_id = d_w_id AND \
            no_d_id = d_id)",
    ),
    (
        3,
        "a district's NO_O_ID have no gap",
        "SELECT count(*) FROM
             (SELECT max(no_o_id) - min(no_o_id) + 1 - count(*) AS gap FROM new_order GROUP BY \
             no_w_id, no_d_id)
         WHERE gap <> 0",
    ),
    (
        4,
        "a district has as many order lines as its O_OL_CNT add up to",
        "SELECT count(*) FROM district
         WHERE (SELECT sum(o_ol_cnt) FROM orders WHERE o_w_id = d_w_id AND o_d_id = d_id)
             IS NOT (SELECT count(*) FROM order_line WHERE ol_w_id = d_w_id AND ol_d_id = d_id)",
    ),
];

/// Judges a database.
///
/// # Errors
/// A condition does not hold, by its number; errors of SQLite.
pub fn check_consistency(db: &Connection) -> Result<()> {
    for (number, what, wrong) in CONDITIONS {
        let count: i64 = db.query_row(wrong, [], |row| row.get(0))?;
        ensure!(
            count == 0,
            "TPC-C's consistency condition {number} does not hold for {count} of them: {what}"
        );
    }
    Ok(())
}
