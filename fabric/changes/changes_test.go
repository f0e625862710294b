package changes

import (
	"sync"
	"testing"
)

func told(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestSeveralChangesAreToldAsOne(t *testing.T) {
	var s Signal
	s.Notify() // nobody follows
	one, _ := s.Changed()
	two, end := s.Changed()
	if told(one) || told(two) {
		t.Error("told of what was before")
	}
	s.Notify()
	s.Notify()
	if !told(one) || told(one) || !told(two) {
		t.Error("two changes are not told once")
	}
	end()
	s.Notify()
	if !told(one) || told(two) {
		t.Error("told are not those who follow")
	}
}

// Whoever looks after he was told sees the last change, whatever the order.
func TestNoChangeIsMissed(t *testing.T) {
	var s Signal
	var mu sync.Mutex
	value, last := 0, 1000
	c, end := s.Changed()
	defer end()
	go func() {
		for range last {
			mu.Lock()
			value++
			s.Notify() // with a lock held
			mu.Unlock()
		}
	}()
	for seen := 0; seen < last; {
		<-c
		mu.Lock()
		seen = value
		mu.Unlock()
	}
}
