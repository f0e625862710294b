package pod

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// What keeps a pod from being in step is tried again for as long as it lasts, and is logged
// when it begins and when it changes, not with every try. What changes with every try is
// logged less and less often.
const firstPause, longestPause = 10 * time.Second, 10 * time.Minute

// complaints are what was logged last of pods that are not in step.
type complaints struct {
	mu  sync.Mutex
	all map[types.NamespacedName]*complaint
}

type complaint struct {
	text  string
	at    time.Time
	pause time.Duration // for which another text is not logged
}

// isNews reports whether the text is to be logged now, and takes it as logged if so.
func (c *complaints) isNews(k types.NamespacedName, text string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.all[k]
	if last == nil {
		if c.all == nil {
			c.all = map[types.NamespacedName]*complaint{}
		}
		c.all[k] = &complaint{text: text, at: now}
		return true
	}
	if since := now.Sub(last.at); last.text == text || since >= 0 && since < last.pause {
		return false
	}
	last.text, last.at, last.pause = text, now, min(max(2*last.pause, firstPause), longestPause)
	return true
}

// over forgets a pod that is in step, or gone.
func (c *complaints) over(k types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, k)
}
