// Package fakewatch waits for the watches of an informer on client-go's fake clientset: a fake forgets what happens
// between an informer's list and its watch, where an API server goes on from the list's resourceVersion.
package fakewatch

import (
	"slices"
	"time"

	clienttesting "k8s.io/client-go/testing"

	"rivulet/test/harness/await"
)

// limit bounds the wait.
const limit = 30 * time.Second

// Open waits until each of the resources is watched. Changes made after that are seen.
func Open(t await.T, client interface{ Actions() []clienttesting.Action }, resources ...string) {
	t.Helper()
	await.True(t, limit, "the watches are open", func() bool {
		actions := client.Actions()
		return !slices.ContainsFunc(resources, func(r string) bool {
			return !slices.ContainsFunc(actions, func(a clienttesting.Action) bool { return a.Matches("watch", r) })
		})
	})
}
