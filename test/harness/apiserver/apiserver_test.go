package apiserver

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestTwoServersAreTwoClusters(t *testing.T) {
	servers := StartAll(t, 2)
	uid := map[string]bool{}
	for _, s := range servers {
		ns, err := s.Client.CoreV1().Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		uid[string(ns.UID)] = true
	}
	if len(uid) != 2 {
		t.Fatalf("two servers are %d clusters", len(uid))
	}
}
