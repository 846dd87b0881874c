"""Authorization, TLS, SASL and delegation tokens."""

from __future__ import annotations

from kbroker.config.key import (
    BOOLEAN,
    CLASS,
    DOUBLE,
    HIGH,
    INT,
    LATER,
    LIST,
    LONG,
    LOW,
    MEDIUM,
    PASSWORD,
    PER_BROKER,
    SHORT,
    STRING,
    UNUSED,
    Key,
)
from kbroker.config.table.rules import KEY_DERIVATION, KEY_LENGTH, PRINCIPALS

# fmt: off
AUTHORIZATION = (
    Key("authorizer.class.name", STRING, "", LOW,
        doc="Authorizer. Empty: everybody may do everything. Kafka's AclAuthorizer, "
            "SimpleAclAuthorizer and StandardAuthorizer, by their full names, select kbroker's, "
            "which decides by the ACLs in the metadata store. Any other name is that of a Python "
            "class, as package.module.Class; Java classes are never loaded."),
    Key("super.users", STRING, "", MEDIUM, check=PRINCIPALS,
        doc="Principals that may do everything, such as User:admin, separated by semicolons."),
    Key("allow.everyone.if.no.acl.found", BOOLEAN, False, MEDIUM,
        doc="Whether everyone may access a resource without ACLs."),
    Key("principal.builder.class", CLASS, None, MEDIUM, dynamic=PER_BROKER, status=LATER,
        doc="Java class that turns a connection into a principal. Java classes are never loaded."),
)

TLS = (
    Key("ssl.protocol", STRING, "TLSv1.3", MEDIUM, dynamic=PER_BROKER,
        doc="Newest TLS version used: TLSv1.2, TLSv1.3, or TLS for both."),
    Key("ssl.provider", STRING, None, MEDIUM, dynamic=PER_BROKER, status=UNUSED,
        doc="Java's security provider."),
    Key("ssl.enabled.protocols", LIST, ("TLSv1.2", "TLSv1.3"), MEDIUM, dynamic=PER_BROKER,
        doc="TLS versions offered: TLSv1.2 and TLSv1.3; older ones are refused."),
    Key("ssl.keystore.type", STRING, "JKS", MEDIUM, dynamic=PER_BROKER,
        doc="Format of the key store: JKS, PKCS12 or PEM."),
    Key("ssl.keystore.location", STRING, None, MEDIUM, dynamic=PER_BROKER,
        doc=
            "Path of the key store. A replaced file is loaded within some seconds; one that does "
            "not load leaves the old one in force, with an error in the log."),
    Key("ssl.keystore.password", PASSWORD, None, MEDIUM, dynamic=PER_BROKER,
        doc="Password of the key store."),
    Key("ssl.key.password", PASSWORD, None, MEDIUM, dynamic=PER_BROKER,
        doc="Password of the private key."),
    Key("ssl.keystore.key", PASSWORD, None, MEDIUM, dynamic=PER_BROKER,
        doc="Private key in PEM, in place of a file."),
    Key("ssl.keystore.certificate.chain", PASSWORD, None, MEDIUM, dynamic=PER_BROKER,
        doc="Certificate chain in PEM, in place of a file."),
    Key("ssl.truststore.type", STRING, "JKS", MEDIUM, dynamic=PER_BROKER,
        doc="Format of the trust store: JKS, PKCS12 or PEM."),
    Key("ssl.truststore.location", STRING, None, MEDIUM, dynamic=PER_BROKER,
        doc="Path of the trust store; a replaced file is loaded as that of the key store is."),
    Key("ssl.truststore.password", PASSWORD, None, MEDIUM, dynamic=PER_BROKER,
        doc="Password of the trust store."),
    Key("ssl.truststore.certificates", PASSWORD, None, MEDIUM, dynamic=PER_BROKER,
        doc="Trusted certificates in PEM, in place of a file."),
    Key("ssl.keymanager.algorithm", STRING, "SunX509", MEDIUM, dynamic=PER_BROKER, status=UNUSED,
        doc="Java's algorithm for key managers."),
    Key("ssl.trustmanager.algorithm", STRING, "PKIX", MEDIUM, dynamic=PER_BROKER, status=UNUSED,
        doc="Java's algorithm for trust managers."),
    Key("ssl.endpoint.identification.algorithm", STRING, "https", LOW, dynamic=PER_BROKER,
        doc='"https" checks host names in certificates of other brokers; empty does not.'),
    Key("ssl.secure.random.implementation", STRING, None, LOW, dynamic=PER_BROKER, status=UNUSED,
        doc="Java's random number generator."),
    Key("ssl.client.auth", STRING, "none", MEDIUM, one_of=("required", "requested", "none"),
        dynamic=PER_BROKER,
        doc=
            "Whether a client must, may or need not show a certificate. With SASL, it counts only "
            "if it is set for the listener (listener.name.<name>.ssl.client.auth)."),
    Key("ssl.cipher.suites", LIST, (), MEDIUM, dynamic=PER_BROKER,
        doc=
            "Cipher suites offered, by Java's names; empty means those of the TLS library. Those "
            "of TLS 1.3 are offered all or not at all."),
    Key("ssl.principal.mapping.rules", STRING, "DEFAULT", LOW,
        doc=
            "Rules that shorten a certificate's name to a principal. Their patterns are RE2's, so "
            "they have no look-around and no back-references."),
    Key("ssl.engine.factory.class", CLASS, None, LOW, dynamic=PER_BROKER, status=UNUSED,
        doc="Java class that builds TLS engines. Java classes are never loaded."),
    Key("ssl.allow.dn.changes", BOOLEAN, False, LOW,
        doc="Whether a reloaded certificate may carry another name."),
    Key("ssl.allow.san.changes", BOOLEAN, False, LOW,
        doc="Whether a reloaded certificate may carry other alternative names."),
    Key("security.providers", STRING, None, LOW, status=UNUSED,
        doc="Java security providers. Java classes are never loaded."),
)

SASL = (
    Key("sasl.enabled.mechanisms", LIST, ("GSSAPI",), MEDIUM,
        doc=
            "SASL mechanisms that clients may use, of GSSAPI, PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 "
            "and OAUTHBEARER; a listener with any other is refused.",
        deviation="needs a restart to change"),
    Key("sasl.mechanism.inter.broker.protocol", STRING, "GSSAPI", MEDIUM, dynamic=PER_BROKER,
        doc=
            "SASL mechanism by which brokers log in at each other. As whom they do is in "
            "sasl.jaas.config of the listener; the tokens of OAUTHBEARER come from "
            "sasl.oauthbearer.token.endpoint.url."),
    Key("sasl.mechanism.controller.protocol", STRING, "GSSAPI", HIGH, status=LATER,
        doc="SASL mechanism used with controllers."),
    Key("sasl.jaas.config", PASSWORD, None, MEDIUM, dynamic=PER_BROKER,
        doc=
            "Credentials in Kafka's login syntax. For PLAIN, user_NAME=\"PASSWORD\" lets a user "
            "log in; for GSSAPI, keyTab and principal of a Krb5LoginModule have the keys of the "
            "broker. Only the text is read; no class is loaded."),
    # With its length, such a request fits the block that any connection may have.
    Key("sasl.server.max.receive.size", INT, 65_532, MEDIUM,
        doc=
            "Maximum size of a request before its client has authenticated. With the default, "
            "nobody makes the broker keep more than 64 KiB for a connection before its login; "
            "tokens that are larger need more.",
        deviation="smaller: Kafka's default is 524288"),
    Key("sasl.server.callback.handler.class", CLASS, None, MEDIUM,
        doc=
            "For PLAIN: what checks passwords, a Python function of user and password that returns "
            "a bool, or a class of such, as package.module.name. For OAUTHBEARER: Kafka's "
            "OAuthBearerUnsecuredValidatorCallbackHandler accepts tokens that nobody has signed. "
            "Java classes are never loaded.",
        deviation="Python instead of Java; unset, OAUTHBEARER accepts signed tokens only"),
    Key("sasl.client.callback.handler.class", CLASS, None, MEDIUM, status=UNUSED,
        doc="Java class for the client side of SASL. Java classes are never loaded."),
    Key("sasl.login.class", CLASS, None, MEDIUM, status=UNUSED,
        doc="Java class for logins. Java classes are never loaded."),
    Key("sasl.login.callback.handler.class", CLASS, None, MEDIUM, status=UNUSED,
        doc="Java class for logins. Java classes are never loaded."),
    Key("sasl.kerberos.service.name", STRING, None, MEDIUM, dynamic=PER_BROKER,
        doc=
            "First part of the brokers' Kerberos principals (kafka in kafka/host@REALM). GSSAPI "
            "needs it, or serviceName in sasl.jaas.config."),
    Key("sasl.kerberos.kinit.cmd", STRING, "/usr/bin/kinit", MEDIUM, dynamic=PER_BROKER,
        status=UNUSED,
        doc="Path of kinit. The Kerberos library gets tickets by itself."),
    Key("sasl.kerberos.ticket.renew.window.factor", DOUBLE, 0.8, MEDIUM, dynamic=PER_BROKER,
        status=UNUSED,
        doc="Share of a ticket's lifetime after which Java renews it."),
    Key("sasl.kerberos.ticket.renew.jitter", DOUBLE, 0.05, MEDIUM, dynamic=PER_BROKER,
        status=UNUSED,
        doc="Random share added to that."),
    Key("sasl.kerberos.min.time.before.relogin", LONG, 60_000, MEDIUM, dynamic=PER_BROKER,
        status=UNUSED,
        doc="Least time between two logins, in ms."),
    Key("sasl.kerberos.principal.to.local.rules", LIST, ("DEFAULT",), MEDIUM, dynamic=PER_BROKER,
        doc=
            "Rules that make users of Kerberos principals, as in Kafka. Their patterns are RE2's, "
            "so they have no look-around and no back-references."),
    Key("sasl.login.refresh.window.factor", DOUBLE, 0.8, MEDIUM, dynamic=PER_BROKER, status=UNUSED,
        doc=
            "Share of a token's lifetime after which Java renews it. Here, a login gets another "
            "token after 80 % of that."),
    Key("sasl.login.refresh.window.jitter", DOUBLE, 0.05, MEDIUM, dynamic=PER_BROKER, status=UNUSED,
        doc="Random share added to that."),
    Key("sasl.login.refresh.min.period.seconds", SHORT, 60, MEDIUM, dynamic=PER_BROKER,
        status=UNUSED,
        doc="Least time between two renewals."),
    Key("sasl.login.refresh.buffer.seconds", SHORT, 300, MEDIUM, dynamic=PER_BROKER, status=UNUSED,
        doc="Safety margin before a token expires."),
    Key("sasl.login.connect.timeout.ms", INT, None, LOW, status=UNUSED,
        doc=
            "Connect timeout of an outside token provider. Here, the time for the whole connection "
            "to a broker counts."),
    Key("sasl.login.read.timeout.ms", INT, None, LOW, status=UNUSED,
        doc="Read timeout of an outside token provider; likewise."),
    Key("sasl.login.retry.backoff.ms", LONG, 100, LOW, status=UNUSED,
        doc="Initial backoff after a failed token request. Here, that of the connection counts."),
    Key("sasl.login.retry.backoff.max.ms", LONG, 10_000, LOW, status=UNUSED,
        doc="Maximum backoff after failed token requests; likewise."),
    Key("sasl.oauthbearer.scope.claim.name", STRING, "scope", LOW,
        doc="Claim of a token that holds its scope."),
    Key("sasl.oauthbearer.sub.claim.name", STRING, "sub", LOW,
        doc="Claim of a token that holds its subject."),
    Key("sasl.oauthbearer.token.endpoint.url", STRING, None, MEDIUM,
        doc=
            "Where this broker gets the tokens by which it logs in at others: a URL with https, "
            "http or file, which must be in sasl.oauthbearer.allowed.urls. clientId, clientSecret "
            "and scope are in sasl.jaas.config."),
    Key("sasl.oauthbearer.jwks.endpoint.url", STRING, None, MEDIUM,
        doc=
            "Where the keys that sign tokens are: a URL with https, http or file, which must be in "
            "sasl.oauthbearer.allowed.urls."),
    Key("sasl.oauthbearer.jwks.endpoint.refresh.ms", LONG, 3_600_000, LOW,
        doc="How often these keys are refreshed."),
    Key("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", LONG, 100, LOW,
        doc="Initial backoff after these keys could not be fetched."),
    Key("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", LONG, 10_000, LOW,
        doc="Maximum backoff after these keys could not be fetched."),
    Key("sasl.oauthbearer.clock.skew.seconds", INT, 30, LOW,
        doc="Clock skew allowed when a token's times are checked."),
    Key("sasl.oauthbearer.expected.audience", LIST, None, LOW,
        doc="Audiences a token must name one of."),
    Key("sasl.oauthbearer.expected.issuer", STRING, None, LOW,
        doc="Issuer a token must come from."),
)

DELEGATION_TOKENS_AND_STORED_PASSWORDS = (
    Key("delegation.token.master.key", PASSWORD, None, MEDIUM,
        aliases=("delegation.token.secret.key",),
        doc=
            "Secret that the secrets of delegation tokens follow from; the same in all brokers. "
            "Unset, there are no delegation tokens."),
    Key("delegation.token.max.lifetime.ms", LONG, 604_800_000, MEDIUM, low=1,
        doc="Maximum lifetime of a delegation token, renewals included."),
    Key("delegation.token.expiry.time.ms", LONG, 86_400_000, MEDIUM, low=1,
        doc="Lifetime of a delegation token until it must be renewed."),
    Key("delegation.token.expiry.check.interval.ms", LONG, 3_600_000, LOW, low=1,
        doc=
            "How often tokens that have ended are removed. Nobody can log in with them in the "
            "meantime."),
    Key("password.encoder.secret", PASSWORD, None, MEDIUM,
        doc=
            "Secret that encrypts passwords among the dynamic settings. Unset, none can be set "
            "while the broker runs."),
    Key("password.encoder.old.secret", PASSWORD, None, MEDIUM,
        doc=
            "The previous secret. What it has encrypted is encrypted with the new one when the "
            "broker starts."),
    Key("password.encoder.keyfactory.algorithm", STRING, None, LOW, check=KEY_DERIVATION,
        doc="Algorithm that derives the key from the secret; unset, PBKDF2WithHmacSHA512.",
        deviation="PBKDF2 with a digest of SHA only"),
    Key("password.encoder.cipher.algorithm", STRING, "AES/CBC/PKCS5Padding", LOW,
        one_of=("AES/CBC/PKCS5Padding", "AES/GCM/NoPadding"),
        doc="Cipher for these passwords.",
        deviation="no other ciphers of Java"),
    Key("password.encoder.key.length", INT, 128, LOW, low=8, check=KEY_LENGTH,
        doc="Length of the key in bits.",
        deviation="only lengths that AES has"),
    Key("password.encoder.iterations", INT, 4096, LOW, low=1024, high=1_000_000,
        doc="Iterations of the derivation.",
        deviation="at most 1,000,000"),
)

SECTIONS = (
    ("Authorization", AUTHORIZATION),
    ("TLS", TLS),
    ("SASL", SASL),
    ("Delegation tokens and stored passwords", DELEGATION_TOKENS_AND_STORED_PASSWORDS),
)
