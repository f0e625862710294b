package external

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// renewal is the cure of a refused credential.
const renewal = "ask the administrator for a new kubeconfig, and give it with: rivulet burst add NAME --kubeconfig FILE"

// refusedByTLS reports whether the text is that of a server, or of something in front of it, that refuses a client
// certificate.
func refusedByTLS(text string) bool {
	return strings.Contains(text, "remote error: tls:") && (strings.Contains(text, "expired") || strings.Contains(text, "bad certificate") || strings.Contains(text, "certificate required"))
}

// unwelcome reports whether the answer means a refused credential.
func unwelcome(err error) bool {
	return err != nil && (apierrors.IsUnauthorized(err) || refusedByTLS(err.Error()))
}

// explain describes for users why the campus could not be reached, with a cure. It wraps err.
func explain(err error, namespace string) error {
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var dns *net.DNSError
	var op *net.OpError
	var missing *exec.Error
	text := err.Error()
	switch {
	case errors.As(err, &authority), strings.Contains(text, "certificate signed by unknown authority"):
		return fmt.Errorf("the server's certificate is of another authority than the kubeconfig's: %w; ask the administrator for a current kubeconfig, and do not go on if nobody has changed it", err)
	case errors.As(err, &host):
		return fmt.Errorf("the server's certificate is for another name: %w; ask the administrator for the right address", err)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("the server's certificate has ended, or this device's clock is wrong: %w; see rivulet doctor", err)
	case refusedByTLS(text):
		return fmt.Errorf("the server does not take the client certificate, has it ended? %w; "+renewal, err)
	case errors.As(err, &record), strings.Contains(text, "server gave HTTP response to HTTPS client"):
		return fmt.Errorf("what answers there does not speak TLS: %w; correct the server's address in the kubeconfig", err)
	case errors.As(err, &missing), strings.Contains(text, "exec: executable") || strings.Contains(text, "getting credentials"):
		return fmt.Errorf("the command that gives the credential has failed: %w; run it by hand on this device, as root", err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the credential is refused; it may have ended: %w; "+renewal, err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("this user may not do that in namespace %s: %w; see the Role that rivulet burst check prints", namespace, err)
	case errors.As(err, &dns):
		return fmt.Errorf("the server's name is not found: %w; is this device online, and the address right?", err)
	case errors.As(err, &op), strings.Contains(text, "i/o timeout"), strings.Contains(text, "deadline exceeded"):
		return fmt.Errorf("the server is not reached: %w; is this device online (does it need HTTPS_PROXY?), and the address right?", err)
	}
	return err
}
