// Packages of npm: settings that are written anew, or a database that is made; promised when the
// package says that it is done. `node node.mjs VERB PACKAGE`.

import fs from "node:fs";

const [verb, name] = process.argv.slice(2);
const dir = process.env.STETFS_DIR;
const path = `${dir}/settings.json`;

// For each package: what writes a value, and what reads it.
const packages = {
  level: async () => {
    const { Level } = await import("level");
    const db = new Level(`${dir}/db`);
    await db.open();
    return {
      write: (value) => db.put("colour", value, { sync: true }),
      read: () => db.get("colour"),
    };
  },
  "write-file-atomic": async () => {
    const { default: writeFileAtomic } = await import("write-file-atomic");
    return {
      write: (colour) => writeFileAtomic(path, JSON.stringify({ colour })),
      read: () => JSON.parse(fs.readFileSync(path, "utf8")).colour,
    };
  },
  conf: async () => {
    const { default: Conf } = await import("conf");
    const conf = new Conf({ cwd: dir, configName: "settings" });
    return {
      write: (value) => conf.set("colour", value),
      read: () => conf.get("colour"),
    };
  },
  lowdb: async () => {
    const { JSONFilePreset } = await import("lowdb/node");
    const db = await JSONFilePreset(path, {});
    return {
      write: (colour) => {
        db.data.colour = colour;
        return db.write();
      },
      read: () => db.data.colour,
    };
  },
};

const values = { old: "green".repeat(2000), now: "blue".repeat(2000) };

async function main() {
  const store = await packages[name]();
  if (verb === "setup") {
    await store.write(values.old);
  } else if (verb === "run") {
    await store.write(values.now);
    fs.writeFileSync(process.env.STETFS_MARKS, "saved\n");
  } else {
    const found = await store.read();
    const isPromised = fs.readFileSync(process.env.STETFS_MARKS_FILE, "utf8").includes("saved");
    const known = name === "level" ? [undefined, values.now] : [values.old, values.now];
    if (!known.includes(found)) throw new Error("the value is neither the old nor the new one");
    if (isPromised && found !== values.now) throw new Error("the new value was promised");
  }
  process.exit(0);
}

main().catch((why) => {
  console.error(String(why), why.cause ? String(why.cause) : "");
  process.exit(1);
});
