package vcluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"rivulet/test/harness/apiserver"
	"rivulet/test/harness/await"
)

// TestCertificateSigningRequests: an administrator inside makes a user as in any cluster, with the rights that RBAC gives, for a
// month at most. Nobody becomes a member of system:masters so.
func TestCertificateSigningRequests(t *testing.T) {
	t.Parallel()
	d := newDevice(t, apiserver.Binary(t))
	d.create(Spec{Name: "ada"})
	client := d.client("ada")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	request := func(name string, subject pkix.Name) error {
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
		must(t, err)
		_, err = client.CertificatesV1().CertificateSigningRequests().Create(t.Context(), &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: certificatesv1.CertificateSigningRequestSpec{Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
				SignerName: certificatesv1.KubeAPIServerClientSignerName, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth}}}, metav1.CreateOptions{})
		return err
	}
	if err := request("root", pkix.Name{CommonName: "root", Organization: []string{"system:masters"}}); !apierrors.IsForbidden(err) {
		t.Errorf("system:masters: %v", err)
	}
	must(t, request("bob", pkix.Name{CommonName: "bob"}))
	csr, err := client.CertificatesV1().CertificateSigningRequests().Get(t.Context(), "bob", metav1.GetOptions{})
	must(t, err)
	csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test"}}
	_, err = client.CertificatesV1().CertificateSigningRequests().UpdateApproval(t.Context(), "bob", csr, metav1.UpdateOptions{})
	must(t, err)
	var issued []byte
	await.Empty(t, patience, "the certificate is issued", func(ctx context.Context) string {
		csr, err := client.CertificatesV1().CertificateSigningRequests().Get(ctx, "bob", metav1.GetOptions{})
		if err != nil || len(csr.Status.Certificate) == 0 {
			return "there is none"
		}
		issued = csr.Status.Certificate
		return ""
	})
	block, _ := pem.Decode(issued)
	crt, err := x509.ParseCertificate(block.Bytes)
	must(t, err)
	if life := crt.NotAfter.Sub(crt.NotBefore); life > adminLife+adminLife/10 {
		t.Errorf("it is valid for %s", life)
	}
	private, err := keyPEM(key)
	must(t, err)
	own := rest.AnonymousClientConfig(d.config("ada"))
	own.CertData, own.KeyData = issued, private
	bob, err := kubernetes.NewForConfig(own)
	must(t, err)
	list := func(ctx context.Context) error {
		_, err := bob.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		return err
	}
	if err := list(t.Context()); !apierrors.IsForbidden(err) {
		t.Errorf("without a role: %v", err)
	}
	_, err = client.RbacV1().RoleBindings("default").Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "bob"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "bob"}},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"}}, metav1.CreateOptions{})
	must(t, err)
	await.NoError(t, t.Context(), patience, "the role is in force", func() error { return list(t.Context()) })
}
