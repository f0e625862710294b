package upgrade

import (
	"context"
	"log/slog"
	"slices"
	"time"
)

// World is what the machine acts on: the device, or a test's model of one. Each
// method may have been cut short by a power cut before, and be called again.
type World interface {
	Load() (State, error)
	Save(State) error // durable when it returns
	// Snapshot saves the data as it is before the new version touches it.
	Snapshot(context.Context, State) (name string, err error)
	// Restore brings the data of the snapshot back and returns where the other is.
	Restore(context.Context, State) (aside string, err error)
	// Try runs the new version until there is a verdict.
	Try(context.Context, State) Verdict
	// Point puts what the state says at the installed place, and removes what no
	// version of it needs. It reports whether the installed place has it.
	Point(State) (linked bool)
	Now() time.Time
	Slots
}

// Kind says how a trial ended.
type Kind int

// The ways a trial ends.
const (
	Healthy   Kind = iota // through the whole window
	Unhealthy             // at its end, or cancelled
	Crashed               // it ended by itself
	Stopped               // we were told to stop
)

// Verdict is the end of a trial.
type Verdict struct {
	Kind   Kind
	Reason string
	Code   int // of exit, when stopped
}

// Choice is what `rivulet run` has to do.
type Choice struct {
	// Run is the version to become; nil is this binary.
	Run *Version
	// Exit ends the process instead, with Code.
	Exit bool
	Code int
	// Restart the device: the boot loader starts another slot.
	Restart bool
}

// decide carries the machine on until it is idle, or told to stop. self is the
// build of this binary.
func decide(ctx context.Context, w World, self string, log *slog.Logger) (Choice, error) {
	s, err := w.Load()
	if err != nil {
		// A device must not stay down for the sake of an update that is over.
		log.Error("the state of updates cannot be read; going on with this binary", "err", err)
		return Choice{}, nil
	}
	if s.replaced(self) {
		log.Warn("another binary was put in place by hand; updates begin anew from it")
		s = s.reset()
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
	if err := s.ofThisSlot(w, log); err != nil {
		return Choice{}, err
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

// step is one of an update; the state that it returns is saved before the choice is followed.
func step(ctx context.Context, w World, s State, log *slog.Logger) (State, Choice, error) {
	a, img, here := s.Attempt, s.image(), w.Slot()
	if img != nil && here != img.from() && here != img.to() {
		log.Error("an update of an image was under way and no slot of it runs; it is forgotten", "version", a.Next.Name)
		return s.ended("the system that runs is in none of its slots", "", w.Now()), Choice{}, nil
	}
	old := img == nil || here == img.from()
	switch {
	case s.Phase == Staged && old:
		name, err := w.Snapshot(ctx, s)
		if err != nil {
			log.Error("the data cannot be saved; the update is not tried", "version", a.Next.Name, "err", err)
			return s.ended("the data could not be saved before: "+err.Error(), "", w.Now()), Choice{}, nil
		}
		return s.begun(name), Choice{}, nil
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
				// The device must not stay down for it: what is left of the tries is few.
				log.Error("the loader may try the other slot again", "err", err)
			}
		}
		aside, err := w.Restore(ctx, s)
		if err != nil {
			return s, Choice{}, err // the old version must not run on the new one's data
		}
		return s.ended(a.Reason, aside, w.Now()), Choice{}, nil
	case s.Phase == Returning:
		if err := w.Reject(*img); err != nil {
			// The tries that are left run out instead: nothing of this slot goes on.
			log.Error("the old slot cannot be chosen; restarting until the loader does", "err", err)
		}
		return s, Choice{Restart: true}, nil
	}
	log.Error("the state of updates is not known; the update is forgotten", "phase", s.Phase)
	return s.ended("the state of updates was not known", "", w.Now()), Choice{}, nil
}

// evaluate tries the new version: the child of this binary, or what the slot that is tried has.
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
		// First the loader: should the power fail in between, it is judged once more.
		if err := w.Accept(*img); err != nil {
			return s.unhealthy("it was healthy, but its slot could not be made the one that boots: " + err.Error()), Choice{}, nil
		}
		// Nothing is left of updates of the binary: the slot has one of its own.
		next.Current, next.Previous, next.Base = nil, nil, ""
		next.Slot, next.SlotKubernetes = img.To, a.Next.Kubernetes
	}
	log.Info("the update is taken", "version", a.Next.Name)
	return next, Choice{}, nil
}
