// Package silence tells what does not happen because it may not from what does not happen because the machine is slow:
// what may not happen is tried beside a control that has to happen in the same time.
package silence

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	controls = 5                      // times that the control happens, one after the other
	pace     = 200 * time.Millisecond // at the least between two of them
	patience = 10 * time.Second       // for each
)

// ErrNotJudged is the verdict where the control did not happen either.
var ErrNotJudged = errors.New("not judged: the control did not succeed")

// Beside tries all at once, beside the control, and returns those that happened, in their order. The control has to
// succeed several times while they are tried, and they are given up a second after the start at the earliest: a machine
// that is slow gives them more time, and one on which nothing happens is ErrNotJudged, not silence. A try ends with its
// context.
func Beside[T any](ctx context.Context, control func(context.Context) error, tries []T, happens func(context.Context, T) bool) ([]T, error) {
	if len(tries) == 0 {
		return nil, errors.New("silence: nothing is tried")
	}
	window, end := context.WithCancel(ctx)
	defer end()
	happened := make([]bool, len(tries))
	var all sync.WaitGroup
	for i, try := range tries {
		all.Go(func() { happened[i] = happens(window, try) })
	}
	err := Control(ctx, control)
	end()
	all.Wait()
	var list []T
	for i, try := range tries {
		if happened[i] {
			list = append(list, try)
		}
	}
	return list, err
}

// Control has something that may happen do so several times, one after the other, a second together at the least.
func Control(ctx context.Context, control func(context.Context) error) error {
	t := time.NewTicker(pace)
	defer t.Stop()
	for range controls {
		one, cancel := context.WithTimeout(ctx, patience)
		err := control(one)
		cancel()
		if err != nil {
			return fmt.Errorf("%w: %w", ErrNotJudged, err)
		}
		<-t.C
	}
	return nil
}
