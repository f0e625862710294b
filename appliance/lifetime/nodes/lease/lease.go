// Package lease decides which server of a cluster is its gateway, by a row of the SQL database that has the cluster's
// objects. At most one device at a time is within a deadline that Config.Held has been called with. Whoever uses the
// cluster's WireGuard key drops it by itself when its deadline passes.
//
//	holder renews   UPDATE … SET beat = beat + 1 WHERE holder = me AND beat = as known      sent at t0: deadline t0 + Life
//	another waits   until it has seen the same holder and beat for Life + Margin
//	another takes   UPDATE … SET holder = me, beat = beat + 1 WHERE holder, beat = as seen  sent at t0: deadline t0 + Life
//
// No clock is compared with another: each device measures by its own CLOCK_BOOTTIME, which counts suspended time. A
// deadline counts from before the statement was sent, a wait from after its answer was received. So the old deadline
// has passed when the wait ends, whatever was slow in between, as long as the clocks run equally fast within
// Margin / (Life + Margin), 14 %. A renewal that another device did not see has changed the beat, and its statement then
// changes nothing. A statement whose result is unknown gives no deadline; the row is read again.
//
// A device that tries a version of rivulet pins the lease by a prefix of the note: the data of before come back if the
// version is undone, and must not come back beside another server. A version that knows no pins takes none of these notes
// for that of its copy, and does not lead.
//
// It reads and writes the table rivulet_gateway. It stores nothing on the device: after a restart
// it reads the row, and renews at once where that names this device and this run of its kernel: a copy of its disk in
// another machine has the same name, and waits like any other device.
//
// A database whose failover loses committed statements (asynchronous replication) may have two holders for up to Life.
package lease

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"rivulet/fabric/changes"
	"rivulet/fabric/cure"
)

const (
	// Every is the time from one renewal to the next, and between two reads of a device that waits.
	Every = 2 * time.Second
	// Life is the time from the sending of a renewal to its deadline.
	Life = 6 * time.Second
	// Margin is how much longer than Life another device waits.
	Margin = time.Second

	// PinLife is how much longer another device waits for one that tries a version of rivulet: it starts again, and with
	// an image the whole device does. It is twice the usual window of a trial.
	PinLife = 30 * time.Minute

	// timeout bounds a statement, its connection included.
	timeout = 2 * time.Second
	// retry is the least time from a statement that has failed to the next one.
	retry = 500 * time.Millisecond
)

// Holder is a device that has the lease.
type Holder struct {
	Node string
	Note string // that of its last renewal
}

// Config is what Run needs. Run calls the functions one after the other, and does not renew while one of them runs.
type Config struct {
	Address string // of the database, as sqlserver.Parse takes it
	Node    string // of this device
	// Note is written with each renewal, for others; 58 bytes at most.
	Note func() string
	// Pinned: this device tries a version of rivulet, and others wait for PinLife longer.
	Pinned bool

	// Lead reports whether this device may begin to be the gateway after that holder. It is not called while a deadline
	// runs.
	Lead func(Holder) bool
	// Held receives the deadline of each renewal, as changes.BootTime has it. It may have passed already.
	Held func(until time.Duration)
	// Other receives the device that has the lease when it is another one.
	Other func(Holder)
	// Report receives errors of the database, with a cure, and nil when it has answered.
	Report func(error)
	Log    *slog.Logger
}

// Run takes and renews the lease until ctx ends. No function of c is called after its return; a deadline stays. It
// returns an error only for an address that is none.
func Run(ctx context.Context, c Config) error {
	db, err := open(c.Address)
	if err != nil {
		return err
	}
	defer db.Close()
	c.Node = holder(c.Node)
	report := c.Report
	c.Report = func(err error) { report(db.Explain(err)) }
	(&device{Config: c, db: db, now: changes.BootTime, mine: true}).run(ctx)
	return nil
}

// Begin makes the table and the row of the present gateway, if there are none. From then on this device needs Run:
// a device that reads the row takes the lease after Life + Margin.
func Begin(ctx context.Context, address, node string, note string) error {
	return with(ctx, address, func(ctx context.Context, db *database) error {
		r, err := db.begin(ctx, holder(node), note)
		if other := nodeOf(r.holder); err == nil && other != node && other != "" {
			return cure.Errorf("%s is the gateway of this cluster in %s, not %s; if %[1]s is the server now, make this device its worker: rivulet reset, and rivulet join; if it is off for good, run there: DELETE FROM rivulet_gateway", other, db, node)
		}
		return err
	})
}

// holder is a node as the row names it: with this run of the machine's kernel.
func holder(node string) string {
	boot := changes.BootID()
	return node + "@" + boot[:min(8, len(boot))]
}

func nodeOf(holder string) string {
	node, _, _ := strings.Cut(holder, "@")
	return node
}

// Pin keeps others from the lease for PinLife, if node has it. Before, Run has returned: this device ends, to try a version
// of rivulet.
func Pin(ctx context.Context, address, node string) error {
	return with(ctx, address, func(ctx context.Context, db *database) error { return pin(ctx, db, holder(node)) })
}

// Release lets another device take the lease at once, if node has it. Before, Run has returned and the device has
// dropped the cluster's key.
func Release(ctx context.Context, address, node string) error {
	return with(ctx, address, func(ctx context.Context, db *database) error { return release(ctx, db, holder(node)) })
}
