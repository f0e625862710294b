package lease

import (
	"context"
	"strings"
	"time"

	"rivulet/fabric/changes"
)

// row is that of the gateway. An empty holder has released it. The beat rises with every change.
type row struct {
	holder string
	beat   int64
	note   string
}

// store has the statements of Run and Release.
type store interface {
	read(ctx context.Context) (row, error)
	// swap writes a holder and its note with the next beat if holder and beat are those of old.
	swap(ctx context.Context, old row, holder, note string) (bool, error)
}

// release compares the beat, so that one that is carried out late ends no later lease of this device.
func release(ctx context.Context, db store, node string) error {
	r, err := db.read(ctx)
	if err == nil && r.holder == node {
		_, err = db.swap(ctx, r, "", r.note)
	}
	return err
}

// pinned begins the note of a device that tries a version of rivulet.
const pinned = "trial "

func (r row) pinned() bool { return strings.HasPrefix(r.note, pinned) }

func (r row) leader() Holder { return Holder{nodeOf(r.holder), strings.TrimPrefix(r.note, pinned)} }

// pin compares the beat, as release does.
func pin(ctx context.Context, db store, node string) error {
	r, err := db.read(ctx)
	if err == nil && r.holder == node && !r.pinned() {
		_, err = db.swap(ctx, r, node, pinned+r.note)
	}
	return err
}

// device is one device that takes part.
type device struct {
	Config
	db  store
	now func() time.Duration

	known bool          // the row is as in row, as far as this device knows
	row   row           // as seen last
	since time.Duration // when its holder and beat were seen first
	// mine is true at the start and from a try to take the lease on, and false from when another device has it. While it
	// is false, a row with this device's name is from before: the database has gone back to an earlier state.
	mine  bool
	until time.Duration // the deadline

	other string // as given to Other
}

func (d *device) run(ctx context.Context) {
	for {
		begun := d.now()
		pause, err := d.step(ctx)
		if ctx.Err() != nil {
			return
		}
		d.Report(err)
		if err != nil {
			pause = max(0, begun+retry-d.now())
		}
		if !changes.Wait(ctx, pause) {
			return
		}
	}
}

// step reads the row, or renews or takes the lease, and returns when the next one is due.
func (d *device) step(ctx context.Context) (time.Duration, error) {
	if !d.known {
		if err := d.read(ctx); err != nil {
			return 0, err
		}
	}
	d.known = false // unless it is renewed or taken now
	own := d.row.holder == d.Node && d.mine
	wait := d.since + Life + Margin - d.now()
	if d.row.pinned() && nodeOf(d.row.holder) != nodeOf(d.Node) {
		wait += PinLife
	}
	if !own && d.row.holder != "" && wait > 0 {
		return min(Every, wait), nil
	}
	if d.now() >= d.until && !d.Lead(d.row.leader()) {
		return retry, nil
	}
	old, note := d.row, d.Note()
	if d.Pinned {
		note = pinned + note
	}
	d.mine = true
	sent := d.now()
	ok, err := bounded(ctx, func(ctx context.Context) (bool, error) { return d.db.swap(ctx, old, d.Node, note) })
	if err != nil || !ok {
		return 0, err
	}
	d.known, d.row, d.until = true, row{d.Node, old.beat + 1, note}, sent+Life
	if !own {
		d.Log.Info("this device has taken the lease of the gateway", "from", old.holder)
	}
	d.Held(d.until)
	d.other = ""
	return max(0, sent+Every-d.now()), nil
}

func (d *device) read(ctx context.Context) error {
	r, err := bounded(ctx, d.db.read)
	if err != nil {
		return err
	}
	received := d.now()
	if r.holder != d.row.holder || r.beat != d.row.beat {
		d.since = received
	}
	d.known, d.row = true, r
	if r.holder == d.Node {
		return nil
	}
	d.mine = false
	if node := nodeOf(r.holder); node != "" && node != nodeOf(d.Node) && node != d.other {
		d.other = node
		d.Other(r.leader())
	}
	return nil
}

// bounded ends a statement that takes too long. Its result is unknown then.
func bounded[T any](ctx context.Context, statement func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return statement(ctx)
}
