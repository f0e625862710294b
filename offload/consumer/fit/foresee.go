package fit

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"rivulet/fabric/changes"
)

const (
	// glance is how often it is looked whether home knows of other images.
	glance = 10 * time.Second
	// foreseen bounds what is learnt from home: what targets have said has the other half.
	foreseen = most / 2
)

// Foresee learns from home before the first try: known tells, by the names of images,
// for which architectures there is something in them, and architectures are those of
// the targets. It asks known only where there is an architecture but here, that of home.
func (m *Memory) Foresee(ctx context.Context, here string, architectures func() []string, known func() (map[string][]string, error)) error {
	last := map[string][]string{}
	var at time.Time
	for {
		wanted := architectures()
		if slices.ContainsFunc(wanted, func(a string) bool { return a != here }) {
			have, err := known()
			if err != nil {
				m.log.Debug("which platforms images have is not known", "err", err)
			}
			// Again and again, as what was learnt is forgotten.
			if now, lacks := time.Now(), Lacking(have, wanted); err == nil && len(lacks) > 0 && (now.Sub(at) > Life/2 || !maps.EqualFunc(last, lacks, slices.Equal)) {
				if err := m.learn(ctx, lacks, now); err != nil {
					m.log.Debug("which platforms images have is not noted yet", "err", err)
				} else {
					last, at = lacks, now
				}
			}
		}
		if !changes.Wait(ctx, glance) {
			return ctx.Err()
		}
	}
}

// Lacking is what there is nothing for, of the architectures that are wanted, by every
// name that a pod may have for an image; no more than may be remembered.
func Lacking(have map[string][]string, wanted []string) map[string][]string {
	out := map[string][]string{}
	for _, image := range slices.Sorted(maps.Keys(have)) {
		var lacks []string
		for _, a := range wanted {
			if a != "" && !slices.Contains(have[image], a) && !slices.Contains(lacks, a) {
				lacks = append(lacks, a)
			}
		}
		if len(lacks) == 0 {
			continue
		}
		slices.Sort(lacks)
		names := Names(image)
		if len(out)+len(names) > foreseen {
			break
		}
		for _, name := range names {
			if len(Key(name)) <= maxKey {
				out[name] = lacks
			}
		}
	}
	return out
}

// Names are those by which a pod may ask for an image that containerd calls so: the
// registry, the folder and the tag that go without saying may be left out.
func Names(image string) []string {
	out := []string{image}
	for _, prefix := range []string{"docker.io/", "library/"} {
		if short, cut := strings.CutPrefix(out[len(out)-1], prefix); cut {
			out = append(out, short)
		} else {
			break
		}
	}
	for _, name := range slices.Clone(out) {
		if short, cut := strings.CutSuffix(name, ":latest"); cut {
			out = append(out, short)
		}
	}
	return out
}
