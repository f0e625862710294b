package reflect

import (
	"context"
	"errors"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"rivulet/fabric/changes"
	"rivulet/offload/policy"
	"rivulet/offload/target"
)

// Supply copies the objects that pods refer to to one target, and removes them after the last reference is gone. Its
// methods may be called at any time; the zero value is ready for use.
type Supply struct {
	mu     sync.Mutex
	spaces map[string]*space // by the namespace of home
}

// enter registers the space for its namespace until leave is called.
func (s *Supply) enter(one *space) (leave func()) {
	if s == nil {
		return func() {}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spaces == nil {
		s.spaces = map[string]*space{}
	}
	s.spaces[one.home] = one
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.spaces[one.home] == one {
			delete(s.spaces, one.home)
		}
	}
}

func (s *Supply) space(namespace string) *space {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.spaces[namespace]
}

// Renew lists anew what the target has, in all namespaces, after a silence: it may have gone back to an earlier state, and
// tells no watch of what it has lost.
func (s *Supply) Renew() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.spaces {
		changes.Poke(one.renew)
	}
}

// Check queues the object, after a pod has stopped referring to it.
func (s *Supply) Check(o policy.Object) {
	if one := s.space(o.Namespace); one != nil && one.kinds[o.Kind] != nil {
		one.queue.Add(key{o.Kind, o.Name})
	}
}

// Bring returns when the target has everything that a pod bound to it refers to; all are of one namespace. Objects that
// do not exist at home are not waited for. The error is target.ErrNotYet if only a retry can help, and a
// policy.StaysHomeError if one that the pod needs does not follow.
func (s *Supply) Bring(ctx context.Context, all []policy.Reference) error {
	if len(all) == 0 {
		return nil
	}
	one := s.space(all[0].Namespace)
	if one == nil {
		return target.ErrNotYet
	}
	answers := make([]<-chan error, len(all))
	for i, r := range all {
		if one.kinds[r.Kind] != nil {
			answers[i] = one.check(key{r.Kind, r.Name})
		}
	}
	for i, r := range all {
		if answers[i] == nil {
			continue // the kind is not reflected there
		}
		var err error
		kind, _ := one.kinds[r.Kind].(interface {
			late(ctx context.Context, name string) error
			stays(name string) error
		})
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-one.over:
			return target.ErrNotYet
		case err = <-answers[i]:
		}
		if kind != nil && err == nil {
			err = kind.late(ctx, r.Name)
		}
		if kind != nil && err == nil && !r.Optional {
			if err := kind.stays(r.Name); err != nil {
				return err
			}
		}
		switch {
		case err == nil, apierrors.IsAlreadyExists(err): // made just now
		case lost(err), apierrors.IsConflict(err), errors.Is(err, target.ErrNotYet):
			return target.ErrNotYet
		case !r.Optional:
			return fmt.Errorf("offload: %s %s does not follow the pod: %w", r.Kind, r.Name, err)
		}
	}
	return nil
}

// check queues the object, and returns the channel of the result.
func (s *space) check(k key) <-chan error {
	answer := make(chan error, 1)
	s.mu.Lock()
	s.checks[k] = append(s.checks[k], answer)
	s.mu.Unlock()
	s.queue.Add(k)
	return answer
}

// waiting are the channels of those who wait for the object.
func (s *space) waiting(k key) []chan error {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.checks[k]
	delete(s.checks, k)
	return all
}
