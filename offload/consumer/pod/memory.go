package pod

import (
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"rivulet/offload/consumer/pod/translate"
)

// memory is what this process remembers of living pods, by UID. After a restart it is empty, and the state of both APIs
// is enough.
type memory struct {
	mu        sync.Mutex
	refused   map[types.UID]string    // why they are refused
	sent      map[types.UID]time.Time // when, by this process
	unsure    map[types.UID]bool      // a create had an unknown outcome
	requested map[types.UID]time.Time // when the target was last queried about a refusal for good: see takeBack
	nowhere   map[types.UID]bool      // see isNowhere
}

func newMemory() memory {
	return memory{refused: map[types.UID]string{}, sent: map[types.UID]time.Time{}, unsure: map[types.UID]bool{}, requested: map[types.UID]time.Time{}, nowhere: map[types.UID]bool{}}
}

func (m *memory) setUnsure(uid types.UID, unsure bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if unsure {
		m.unsure[uid] = true
	} else {
		delete(m.unsure, uid)
	}
}

func (m *memory) isUnsure(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.unsure[uid]
}

func (m *memory) setSent(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sent[uid] = time.Now()
}

// sentAt is the zero time and false for a pod that this process has not sent.
func (m *memory) sentAt(uid types.UID) (at time.Time, sent bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	at, sent = m.sent[uid]
	return at, sent
}

// setRefused stores why a pod is refused, and returns the previous reason.
func (m *memory) setRefused(uid types.UID, why string) (before string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before, m.refused[uid] = m.refused[uid], why
	return before
}

// isRefused reports whether the last attempt to send the pod was refused.
func (m *memory) isRefused(home *corev1.Pod) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.refused[home.UID] != "" || home.Status.Reason == translate.ReasonRefused
}

// accepted ends a refusal.
func (m *memory) accepted(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.refused, uid)
}

// refusals returns why living pods are refused, and forgets the refusals of others.
func (m *memory) refusals(living func() []*corev1.Pod) map[types.UID]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	left := map[types.UID]string{}
	for _, p := range living() {
		if why, ok := m.refused[p.UID]; ok {
			left[p.UID] = why
		}
	}
	m.refused = left
	return maps.Clone(left)
}

// setRequested: the target is queried now.
func (m *memory) setRequested(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requested[uid] = time.Now()
}

// setTurnedDown: the target has refused the pod for good, and has nothing of it; nowhere: any target would.
func (m *memory) setTurnedDown(uid types.UID, nowhere bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sent, uid)
	m.requested[uid] = time.Now()
	delete(m.nowhere, uid)
	if nowhere {
		m.nowhere[uid] = true
	}
}

// isNowhere reports whether any target would refuse the pod.
func (m *memory) isNowhere(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.nowhere[uid]
}

// isTurnedDown reports whether a pod was refused for good less than anew ago.
func (m *memory) isTurnedDown(home *corev1.Pod) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	since := time.Since(m.requested[home.UID])
	return home.Status.Reason == translate.ReasonRefused && since >= 0 && since < anew
}

// due is when the target is to be queried about a pod that is not made there.
func (m *memory) due(uid types.UID) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	if at, known := m.requested[uid]; known {
		return at.Add(anew)
	}
	return m.sent[uid].Add(unmadeFirst) // long ago after a restart
}

// forget drops a pod that is gone, except why it was refused: see refusals.
func (m *memory) forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sent, uid)
	delete(m.unsure, uid)
	delete(m.requested, uid)
	delete(m.nowhere, uid)
}
