package courses

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/fabric/changes"
)

// Images are the images of this device.
type Images interface {
	// Provide brings an image to the device, keeps it there, and lets tenants use it.
	Provide(ctx context.Context, name string) error
	// Release ends that for all images but these.
	Release(ctx context.Context, but []string) error
}

// imagesEvery is the interval of checks: an image that is missing may be brought from a file meanwhile.
const imagesEvery = time.Minute

// imageSet brings the images of all Courses to the device, one after the other.
type imageSet struct {
	poke    chan struct{}
	changed changes.Signal // of results

	mu      sync.Mutex
	known   bool // want was called
	whole   bool // no Course is unreadable: others' images are released
	wanted  []string
	results map[string]error // of those that were tried; nil is success
}

// want sets the images of all Courses.
func (s *imageSet) want(names []string, whole bool) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known && s.whole == whole && slices.Equal(s.wanted, names) {
		return
	}
	s.known, s.whole, s.wanted = true, whole, names
	changes.Poke(s.poke)
}

func (s *imageSet) now() (names []string, whole, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wanted, s.whole, s.known
}

func (s *imageSet) run(ctx context.Context, images Images) {
	for ctx.Err() == nil {
		if names, whole, known := s.now(); known {
			results := map[string]error{}
			for _, name := range names {
				results[name] = images.Provide(ctx, name)
				s.set(results)
			}
			s.set(results)
			if whole {
				_ = images.Release(ctx, names) // tried again with the next pass
			}
		}
		pause := time.NewTimer(imagesEvery)
		select {
		case <-ctx.Done():
		case <-s.poke:
		case <-pause.C:
		}
		pause.Stop()
	}
}

// set adds results, and keeps those of images that have not been tried again.
func (s *imageSet) set(results map[string]error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := fmt.Sprint(s.results)
	next := map[string]error{}
	for name, err := range s.results {
		if slices.Contains(s.wanted, name) {
			next[name] = err
		}
	}
	maps.Copy(next, results)
	if s.results = next; fmt.Sprint(next) != before {
		s.changed.Notify()
	}
}

// condition is that all of the images are on this device.
func (s *imageSet) condition(names []string) metav1.Condition {
	s.mu.Lock()
	defer s.mu.Unlock()
	var waiting, missing []string
	for _, name := range names {
		switch err, tried := s.results[name]; {
		case !tried:
			waiting = append(waiting, name)
		case err != nil:
			missing = append(missing, fmt.Sprintf("%s: %v", name, err))
		}
	}
	switch {
	case len(missing) > 0:
		return condition(ImagesReady, false, "ImagesMissing", fmt.Sprintf("%.1000s", strings.Join(missing, "; ")))
	case len(waiting) > 0:
		return condition(ImagesReady, false, "BringingImages", fmt.Sprintf("%d of %d images are there; missing: %.800s", len(names)-len(waiting), len(names), strings.Join(waiting, ", ")))
	}
	return condition(ImagesReady, true, "ImagesThere", fmt.Sprintf("%d images are on this device", len(names)))
}
