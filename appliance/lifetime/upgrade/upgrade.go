// Package upgrade replaces the binary or the image of a device, and restores the old one with the old data by itself if
// the new one does not work (docs/design/upgrade.md).
//
//	          rivulet upgrade FILE         data saved          healthy for the whole window
//	Idle ──────────────────────▶ Staged ────────────▶ Trying ───────────────────────────▶ Idle (new)
//	 ▲                             │ cannot save        │ unhealthy, crashed 3 times, begun 10 times
//	 │◀────────────────────────────┘                    ▼
//	 └──────────── data restored ───────────────── Returning                             Idle (old)
//
// It reads the release file, its signature, status and API of the tried version; it alone writes <state>/versions (the
// state is update.json there, not state.db, which is restored with the data) and the installed program. Restart, power
// cut: each step can be repeated. Failure: status and health codes upgrade-*.
package upgrade

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"rivulet/appliance/state/durable"
	"rivulet/appliance/version"
	"rivulet/fabric/peer"
)

// Phase is the progress of an update.
type Phase string

// The phases; see the drawing above.
const (
	Idle      Phase = "idle"
	Staged    Phase = "staged"
	Trying    Phase = "trying"
	Returning Phase = "returning"
)

const (
	maxCrashes = 3  // how often a new version may end by itself
	maxStarts  = 10 // how often it may be started, by power cuts above all
)

// Version is a binary below <state>/versions.
type Version struct {
	Name       string `json:"name"`       // in `rivulet version`
	Dir        string `json:"dir"`        // below versions: <name>-<hash>
	BuildID    string `json:"buildID"`    // identifies a running binary
	Kubernetes string `json:"kubernetes"` // its version
}

// Outcome is the result of the last update.
type Outcome struct {
	Version string    `json:"version"`
	From    string    `json:"from"`
	OK      bool      `json:"ok"`
	Reason  string    `json:"reason,omitempty"` // why it was not kept
	At      time.Time `json:"at"`
	// Aside has the data that were written during the trial.
	Aside string `json:"aside,omitempty"`
}

// State is the state of updates. The zero value is a device that never had one.
type State struct {
	Format int   `json:"format"`
	Phase  Phase `json:"phase"`
	// Current is what runs without a trial; nil is the installed binary.
	Current *Version `json:"current,omitempty"`
	// Previous is the one before, kept on disk.
	Previous *Version `json:"previous,omitempty"`
	// Base is the build of the binary that was installed when the first update was staged: it is still started first if
	// its place is not writable.
	Base string `json:"base,omitempty"`
	// Linked is true once Current is installed.
	Linked bool     `json:"linked,omitempty"`
	Last   *Outcome `json:"last,omitempty"`
	// Snapshot is the name of the data of before the last update that was tried.
	Snapshot string `json:"snapshot,omitempty"`
	// Generation is the highest generation of a signing key so far; the binary has one of its own (signed.Trust).
	Generation int `json:"generation,omitempty"`

	// Of an update that is under way.
	Attempt *Attempt `json:"attempt,omitempty"`
}

// Attempt is an update in progress. A new one starts without data of an older one.
type Attempt struct {
	Next Version `json:"next"`
	From Version `json:"from"`
	// Window is how long it must be healthy, checked at the interval Every.
	Window time.Duration `json:"window"`
	Every  time.Duration `json:"every"`
	// Peers were connected before, and must be connected again.
	Peers []string `json:"peers,omitempty"`
	// Answered are the addresses of those that took a TCP connection then: when they take none, they are switched off.
	Answered   map[string]string `json:"answered,omitempty"`
	Generation int               `json:"generation"`
	StagedAt   time.Time         `json:"stagedAt"`

	Starts   int       `json:"starts"`
	Crashes  int       `json:"crashes"`
	Begun    time.Time `json:"begun,omitzero"` // time of the last start
	Snapshot string    `json:"snapshot,omitempty"`
	// Saved describes the snapshot; nil in attempts that an older version has begun.
	Saved  *Saved `json:"saved,omitempty"`
	Reason string `json:"reason,omitempty"` // why it is undone
	// Image is set if a whole image is tried and not a binary: image.go.
	Image *Image `json:"image,omitempty"`
}

// Saved describes the data of before an update, so that they are restored as what they are, and only to the device that
// they are of.
type Saved struct {
	Kind string `json:"kind"` // savedBackup, savedStore
	// Worker and ID are the device's role and the identity in its store at that time.
	Worker bool    `json:"worker,omitempty"`
	ID     peer.ID `json:"id"`
}

// The kinds of a snapshot.
const (
	savedBackup = "backup" // of a server: a stream of package backup
	savedStore  = "store"  // of a worker, which has nothing else: state.db
)

// format is the version of State on disk.
const format = 1

func (s State) staged(a Attempt) State {
	a.Starts, a.Crashes, a.Snapshot, a.Saved, a.Reason, a.Begun = 0, 0, "", nil, "", time.Time{}
	if a.Image != nil {
		a.Image = &Image{From: a.Image.From, To: a.Image.To}
	}
	s.Format, s.Phase, s.Attempt, s.Last = format, Staged, &a, nil
	return s
}

// change returns s with a changed copy of its attempt.
func (s State) change(f func(*State, *Attempt)) State {
	a := *s.Attempt
	s.Attempt = &a
	f(&s, &a)
	return s
}

func (s State) begun(snapshot string, saved Saved) State {
	return s.change(func(s *State, a *Attempt) { s.Phase, a.Snapshot, a.Saved = Trying, snapshot, &saved })
}

// started is written before the new version is started, so that a start with a power cut counts.
func (s State) started(now time.Time) State {
	return s.change(func(s *State, a *Attempt) {
		if a.Starts++; a.Starts > maxStarts {
			s.Phase, a.Reason = Returning, fmt.Sprintf("it was started %d times and never ran to the end of its window", maxStarts)
		}
		a.Begun = now
	})
}

// stopped uncounts a start that was ended in order.
func (s State) stopped() State {
	return s.change(func(_ *State, a *Attempt) { a.Starts-- })
}

func (s State) crashed(how string) State {
	return s.change(func(s *State, a *Attempt) {
		if a.Crashes++; a.Crashes >= maxCrashes {
			s.Phase, a.Reason = Returning, fmt.Sprintf("it ended by itself %d times, the last time with %s", a.Crashes, how)
		}
	})
}

func (s State) unhealthy(reason string) State {
	return s.change(func(s *State, a *Attempt) { s.Phase, a.Reason = Returning, reason })
}

func (s State) committed(now time.Time) State {
	a := s.Attempt
	s.Previous, s.Current = &a.From, &a.Next
	s.Generation = max(s.Generation, a.Generation)
	s.Phase, s.Attempt, s.Snapshot = Idle, nil, cmp.Or(a.Snapshot, s.Snapshot)
	s.Linked = false // until it is seen to be installed
	s.Last = &Outcome{Version: a.Next.Name, From: a.From.Name, OK: true, At: now}
	return s
}

// ended is an update that was not kept; its writes are undone.
func (s State) ended(reason, aside string, now time.Time) State {
	a := s.Attempt
	s.Phase, s.Attempt, s.Snapshot = Idle, nil, cmp.Or(a.Snapshot, s.Snapshot)
	s.Last = &Outcome{Version: a.Next.Name, From: a.From.Name, Reason: reason, At: now, Aside: aside}
	return s
}

// replaced reports whether an operator has installed another binary by hand, which takes precedence: it is unrelated to
// updates.
func (s State) replaced(self string) bool {
	if s.image() != nil {
		return false // the running slot is decisive, and its binary is of no update
	}
	if s.Phase == Idle && s.Current == nil {
		return false
	}
	if s.Phase == Idle && s.Linked {
		return self != s.Current.BuildID
	}
	known := []string{s.Base}
	for _, v := range []*Version{s.Current, s.Previous} {
		if v != nil {
			known = append(known, v.BuildID)
		}
	}
	if s.Attempt != nil {
		known = append(known, s.Attempt.Next.BuildID, s.Attempt.From.BuildID)
	}
	for _, id := range known {
		if id == self {
			return false
		}
	}
	return true
}

// reset keeps only the protection against old releases and, of an attempt, the way back by hand: its data of before and the
// version that wrote them.
func (s State) reset(now time.Time) State {
	next := State{Format: format, Phase: Idle, Generation: s.Generation}
	if a := s.Attempt; a != nil {
		reason := "another rivulet was installed meanwhile"
		if a.Snapshot != "" {
			reason += ", and the data of before are in versions/" + a.Snapshot
		}
		s = s.ended(reason, "", now)
		s.Last.From, next.Previous = version.Version, &a.From // this one runs
	}
	next.Last, next.Snapshot = s.Last, s.Snapshot
	return next
}

const stateName = "update.json"

// Load reads the state in the folder of versions; without one the device is idle.
func Load(dir string) (State, error) {
	s := State{Format: format, Phase: Idle}
	raw, err := os.ReadFile(filepath.Join(dir, stateName))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("update: %w", err)
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return s, fmt.Errorf("update: %s: %w; move it away to go on with the binary that is installed", filepath.Join(dir, stateName), err)
	}
	if s.Format > format {
		return s, fmt.Errorf("update: %s is of a newer rivulet (format %d); run that one, or move the file away", filepath.Join(dir, stateName), s.Format)
	}
	if s.Phase != Idle && s.Attempt == nil {
		return s, fmt.Errorf("update: %s says %s, but not of what; move it away to go on with the binary that is installed", filepath.Join(dir, stateName), s.Phase)
	}
	return s, nil
}

// store writes the state durably and in one step.
func store(dir string, s State) error {
	raw, err := json.MarshalIndent(s, "", "  ")
	if err == nil {
		err = durable.Write(filepath.Join(dir, stateName), append(raw, '\n'), 0o600)
	}
	return updateErr(err)
}

func updateErr(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("update: %w", err)
}
