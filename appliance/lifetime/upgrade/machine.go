package upgrade

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"
)

// World is what the state machine acts on: the device, or a test's model of one. Each method may have been interrupted
// by a power cut before, and is then called again.
type World interface {
	Load() (State, error)
	Save(State) error // durable when it returns
	// Snapshot saves the data before the new version changes them.
	Snapshot(context.Context, State) (name string, saved Saved, err error)
	// Restore restores the data of the snapshot and returns where the other data are. With errOther it has changed
	// nothing: the snapshot is of what the device is no longer.
	Restore(context.Context, State) (aside string, err error)
	// Try runs the new version until there is a verdict.
	Try(context.Context, State) Verdict
	// Point installs the current version, and removes unneeded ones. It reports whether it is installed.
	Point(State) (linked bool)
	Now() time.Time
	Slots
}

// errOther is in the error of Restore if the device has another role or identity than when its data were saved.
var errOther = errors.New("only the version was undone, and the data are those of now")

// Kind is how a trial ended.
type Kind int

// The results of a trial.
const (
	Healthy   Kind = iota // for the whole window
	Unhealthy             // at its end, or cancelled
	Crashed               // it ended by itself
	Stopped               // this process was stopped
)

// Verdict is the result of a trial.
type Verdict struct {
	Kind   Kind
	Reason string
	Code   int // exit code, when stopped
}

// Choice is the next action of `rivulet run`.
type Choice struct {
	// Run is the version to become; nil is this binary.
	Run *Version
	// Exit ends the process instead, with Code.
	Exit bool
	Code int
	// Restart the device: the boot loader starts another slot.
	Restart bool
}

// decide runs the state machine until it is idle, or stopped. self is the build of this binary.
func decide(ctx context.Context, w World, self string, log *slog.Logger) (Choice, error) {
	s, err := w.Load()
	if err != nil {
		// A finished update must not keep a device down.
		log.Error("the state of updates cannot be read; going on with this binary", "err", err)
		return Choice{}, nil
	}
	if s.replaced(self) {
		log.Warn("another binary was put in place by hand; updates begin anew from it")
		s = s.reset(w.Now())
		if err := w.Save(s); err != nil {
			return Choice{}, err
		}
	}
	for s.Phase != Idle {
		if s.image() == nil && !slices.Contains([]Phase{Staged, Trying, Returning}, s.Phase) {
			log.Error("the state of updates is not known; going on with this binary", "phase", s.Phase)
			return Choice{}, nil
		}
		next, choice, err := step(ctx, w, s, log)
		if err != nil {
			return Choice{}, err
		}
		s = next
		if err := w.Save(s); err != nil || choice.Exit || choice.Restart {
			return choice, err
		}
	}
	if linked := w.Point(s); linked != s.Linked {
		s.Linked = linked
		if err := w.Save(s); err != nil {
			return Choice{}, err
		}
	}
	if s.Current == nil || s.Current.BuildID == self {
		return Choice{}, nil
	}
	return Choice{Run: s.Current}, nil
}

// step does one step of an update; the returned state is saved before the choice is followed.
func step(ctx context.Context, w World, s State, log *slog.Logger) (State, Choice, error) {
	a, img, here := s.Attempt, s.image(), w.Slot()
	if img != nil && here != img.from() && here != img.to() {
		log.Error("an update of an image was under way and no slot of it runs; it is forgotten", "version", a.Next.Name)
		return s.ended("the system that runs is in none of its slots", "", w.Now()), Choice{}, nil
	}
	old := img == nil || here == img.from()
	switch {
	case s.Phase == Staged && old:
		name, saved, err := w.Snapshot(ctx, s)
		if err != nil {
			log.Error("the data cannot be saved; the update is not tried", "version", a.Next.Name, "err", err)
			return s.ended("the data could not be saved before: "+err.Error(), "", w.Now()), Choice{}, nil
		}
		return s.begun(name, saved), Choice{}, nil
	case s.Phase == Staged:
		return s.ended("its slot was started before its turn", "", w.Now()), Choice{}, nil
	case s.Phase == Trying && img != nil && old:
		return tryImage(w, s, log)
	case s.Phase == Trying:
		return evaluate(ctx, w, s, log)
	case s.Phase == Returning && old:
		log.Error("the update is undone, the data of before comes back", "version", a.Next.Name, "reason", a.Reason)
		if img != nil {
			if err := w.Reject(*img); err != nil {
				// This must not keep the device down: few tries are left.
				log.Error("the loader may try the other slot again", "err", err)
			}
		}
		aside, err := w.Restore(ctx, s)
		if errors.Is(err, errOther) {
			log.Error("only the version is undone", "err", err)
			return s.ended(a.Reason+"; "+err.Error(), "", w.Now()), Choice{}, nil
		}
		if err != nil {
			return s, Choice{}, err // the old version must not run on the new one's data
		}
		return s.ended(a.Reason, aside, w.Now()), Choice{}, nil
	case s.Phase == Returning:
		if err := w.Reject(*img); err != nil {
			// Then the remaining tries run out: this slot must not continue.
			log.Error("the old slot cannot be chosen; restarting until the loader does", "err", err)
		}
		return s, Choice{Restart: true}, nil
	}
	log.Error("the state of updates is not known; the update is forgotten", "phase", s.Phase)
	return s.ended("the state of updates was not known", "", w.Now()), Choice{}, nil
}

// evaluate tries the new version: as a child of this binary, or the binary of the tried slot.
func evaluate(ctx context.Context, w World, s State, log *slog.Logger) (State, Choice, error) {
	if s = s.started(w.Now()); s.Phase != Trying {
		return s, Choice{}, nil
	}
	if err := w.Save(s); err != nil {
		return s, Choice{}, err
	}
	a := s.Attempt
	log.Info("trying an update", "version", a.Next.Name, "from", a.From.Name, "window", a.Window, "start", a.Starts)
	switch v := w.Try(ctx, s); v.Kind {
	case Stopped:
		return s.stopped(), Choice{Exit: true, Code: v.Code}, nil
	case Crashed:
		log.Error("the version that is tried ended by itself", "version", a.Next.Name, "how", v.Reason)
		return s.crashed(v.Reason), Choice{}, nil
	case Unhealthy:
		return s.unhealthy(v.Reason), Choice{}, nil
	}
	next := s.committed(w.Now())
	if img := a.Image; img != nil {
		// First the loader: after a power cut in between the version is evaluated again.
		if err := w.Accept(*img); err != nil {
			return s.unhealthy("it was healthy, but its slot could not be made the one that boots: " + err.Error()), Choice{}, nil
		}
		// Updates of the binary have no meaning any more: the slot has its own.
		next.Current, next.Previous, next.Base = nil, nil, ""
	}
	log.Info("the update is taken", "version", a.Next.Name)
	return next, Choice{}, nil
}
