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
	// glance is how often home's images are checked for changes.
	glance = 10 * time.Second
	// foreseen bounds the entries from home's images; the other half is for reports of targets.
	foreseen = most / 2
)

// Foresee adds entries before the first try of a pod: known returns the architectures of home's images, by name;
// architectures are those of the targets. It calls known only if a target has another architecture than here, home's
// own.
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
			// Repeated without a change as well, since entries expire.
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

// Lacking returns, of the wanted architectures, those that images have nothing for, by every name that a pod may use
// for the image, up to the bound.
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

// Names are those by which a pod may name an image of containerd: default registry, folder and tag may be omitted.
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
