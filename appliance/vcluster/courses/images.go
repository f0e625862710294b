package courses

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	dockerref "github.com/distribution/reference"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rivulet/fabric/changes"
)

// Images are the images of this device.
type Images interface {
	// Provide brings an image to the device, keeps it there, and lets virtual clusters of these groups use it.
	Provide(ctx context.Context, name string, groups []string) error
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
	known   bool                // want was called
	whole   bool                // no Course is unreadable: others' images are released
	wanted  map[string][]string // the groups of each image's Courses, sorted
	results map[string]error    // of those that were tried; nil is success
}

// want sets the images of all Courses. Names of one image have the groups of all of them.
func (s *imageSet) want(of map[string]*Course, whole bool) {
	groups, wanted := map[string][]string{}, map[string][]string{}
	for _, course := range of {
		for _, name := range course.Spec.Images {
			groups[plain(name)] = append(groups[plain(name)], course.key())
			wanted[name] = nil
		}
	}
	for name := range wanted {
		wanted[name] = slices.Compact(slices.Sorted(slices.Values(groups[plain(name)])))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known && s.whole == whole && reflect.DeepEqual(s.wanted, wanted) {
		return
	}
	s.known, s.whole, s.wanted = true, whole, wanted
	changes.Poke(s.poke)
}

// plain is the name of an image as containerd has it.
func plain(name string) string {
	if named, err := dockerref.ParseDockerRef(name); err == nil {
		return named.String()
	}
	return name
}

func (s *imageSet) now() (wanted map[string][]string, whole, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wanted, s.whole, s.known
}

func (s *imageSet) run(ctx context.Context, images Images) {
	for ctx.Err() == nil {
		if wanted, whole, known := s.now(); known {
			results := map[string]error{}
			names := slices.Sorted(maps.Keys(wanted))
			for _, name := range names {
				results[name] = images.Provide(ctx, name, wanted[name])
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
		if _, ok := s.wanted[name]; ok {
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
